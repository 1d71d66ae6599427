"""The scheduler side of an external KV store: lookups, loads, saves and the blocks they hold."""
