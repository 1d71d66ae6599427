"""Ollama's API: chats and completions as lines of JSON, and what its clients read of models."""
