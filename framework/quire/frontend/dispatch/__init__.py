"""The connection to the engine: its client interface, its thread, and delivery to streams."""
