"""Routes of plugins: selection, the host around each call, and what a call can use."""
