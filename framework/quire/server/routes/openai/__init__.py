"""OpenAI's completions, with and without a chat."""
