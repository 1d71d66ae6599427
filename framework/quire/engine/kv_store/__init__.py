"""The scheduler's side of an outside KV store: lookups, loads, saves and the blocks they hold."""
