"""Chat templates, and the parsers that split a completion into reasoning, tool calls and text."""
