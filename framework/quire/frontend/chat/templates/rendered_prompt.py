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
        opening: End of the text that the template wrote behind the conversation, or the text of the
            assistant that is continued, and may have opened the reasoning; None: it was not looked
            for.
    """

    text: str
    breaks: tuple[int, ...] = ()
    opening: str | None = None

    def as_prompt(
        self,
        shown_special_tokens: Collection[int] = (),
        *,
        has_tools: bool = False,
        add_special_tokens: bool = False,
    ) -> dict[str, Any]:
        """Return the prompt as `Intake.encode` takes it.

        Args:
            shown_special_tokens: Special tokens that the parsers of its completions must see.
            has_tools: Whether its completions are read for tool calls.
            add_special_tokens: True to add the tokenizer's special tokens to those of the template.
        """
        prompt: dict[str, Any] = {"prompt": self.text, "add_special_tokens": add_special_tokens}
        if shown_special_tokens:
            prompt["shown_special_tokens"] = shown_special_tokens
        if has_tools:
            prompt["has_tools"] = True
        if self.breaks:
            prompt["special_token_breaks"] = self.breaks
        return prompt if self.opening is None else prompt | {"opening": self.opening}
