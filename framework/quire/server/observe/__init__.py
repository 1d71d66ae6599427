"""What operators see of the server: metrics, traces, and the access log."""
