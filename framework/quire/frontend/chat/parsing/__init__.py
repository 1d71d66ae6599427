"""The parsers that split a completion into reasoning, tool calls and text."""
