"""Chat templates: a conversation as the text of a prompt, and what the templates need for it."""
