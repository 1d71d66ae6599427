"""Choice of each part of an engine, with the reason for it."""
