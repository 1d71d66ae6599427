"""Parts for quire, by a stranger."""
