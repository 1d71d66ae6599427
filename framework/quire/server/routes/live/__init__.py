"""Routes that show the engine while it runs."""
