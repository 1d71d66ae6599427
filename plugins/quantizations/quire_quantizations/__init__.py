"""How linear layers keep their weights."""
