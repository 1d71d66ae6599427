"""Parsers of tool calls and reasoning that a checkpoint's own `response_template` describes."""
