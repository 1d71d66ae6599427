"""A third party's plugins for quire."""
