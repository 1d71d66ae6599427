"""HTTP, and nothing else, on top of the frontend."""
