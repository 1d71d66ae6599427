"""An engine in a separate process: both ends, and the messages between them."""
