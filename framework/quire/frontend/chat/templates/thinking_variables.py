"""Names of the variables by which chat templates switch the thinking of their models."""

SWITCHES = ("enable_thinking", "thinking")  # of Qwen, GLM, Gemma and others; of DeepSeek and Kimi
EFFORT = "reasoning_effort"
THINKING_VARIABLES = frozenset({*SWITCHES, EFFORT})
