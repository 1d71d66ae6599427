"""An engine in a process of its own: both ends, and what they say to each other."""
