"""Bodies as bytes: OpenAI's fields, JSON, server-sent events and errors."""
