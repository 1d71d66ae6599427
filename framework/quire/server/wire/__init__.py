"""Request and response bodies: OpenAI's fields, JSON, server-sent events and errors."""
