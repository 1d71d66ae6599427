"""A conversation as the text of a prompt, with the breaks that no special token spans."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """The text that a chat template wrote.

    Attributes:
        text: Text of the prompt, special tokens included.
        breaks: Positions in the text that no special token spans; see `SpecialSpellings`.
    """

    text: str
    breaks: tuple[int, ...] = ()

    def as_prompt(self) -> dict[str, Any]:
        """Return the prompt as `Intake.encode` takes it."""
        prompt: dict[str, Any] = {"prompt": self.text, "add_special_tokens": False}
        return prompt | ({"special_token_breaks": self.breaks} if self.breaks else {})
