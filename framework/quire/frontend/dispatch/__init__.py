"""The way to the engine: its thread, its client interface and the streams' hand-over."""
