"""Chat templates, and the parsers that split a completion into thinking, calls and text."""
