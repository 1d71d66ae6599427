"""A conversation as the text of a prompt, with the breaks that no special token spans."""

from collections.abc import Collection
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

    def as_prompt(
        self, shown_special_tokens: Collection[int] = (), *, add_special_tokens: bool = False
    ) -> dict[str, Any]:
        """Return the prompt as `Intake.encode` takes it.

        Args:
            shown_special_tokens: Special tokens that the parsers of its completions must see.
            add_special_tokens: True to add the tokenizer's special tokens to those of the template.
        """
        prompt: dict[str, Any] = {"prompt": self.text, "add_special_tokens": add_special_tokens}
        if shown_special_tokens:
            prompt["shown_special_tokens"] = shown_special_tokens
        return prompt | ({"special_token_breaks": self.breaks} if self.breaks else {})
