"""What all APIs with conversations share: the prompt, the tools, and the parsed completion."""
