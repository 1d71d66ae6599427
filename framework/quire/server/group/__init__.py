"""Several processes that serve HTTP for one engine: what they tell each other, and their parent."""
