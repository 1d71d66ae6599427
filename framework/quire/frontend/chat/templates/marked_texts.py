"""Marks in the texts of a conversation, where they spell special tokens.

A template writes texts of clients between special tokens of its own, and a tokenizer cannot tell
both apart: a message with `<|im_end|>` would end its turn. So the texts get a mark within each such
spelling before they are rendered. The marks are removed from the rendered text, and their places
are breaks, which no special token spans.
"""

import json
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.templates.rendered_prompt import RenderedPrompt
from quire.frontend.text.special_spellings import SpecialSpellings

CANDIDATES = [chr(code) for code in range(0xE000, 0xF900)]  # private use


class MarkedTexts:
    """The variables of one conversation, with marks.

    Args:
        variables: Variables of a template that a client gave: JSON data.
        spellings: Spellings to mark.
        template: Source of the template.

    Attributes:
        variables: The variables, with marks where their texts need them.

    Raises:
        InvalidRequestError: The texts have special tokens and every private-use character.
    """

    def __init__(
        self, variables: dict[str, Any], spellings: SpecialSpellings, template: str
    ) -> None:
        self._spellings = spellings
        self._mark = ""
        self.variables = variables
        texts: list[str] = []
        _add_texts(variables, texts)
        if any(map(spellings.are_near, texts)):
            self._mark = _unused_mark("\n".join((template, *texts)))
            self.variables = {name: self._marked(value) for name, value in variables.items()}

    def rendered(self, text: str) -> RenderedPrompt:
        """Return a rendered text without the marks, and the breaks instead."""
        if not self._mark:
            return RenderedPrompt(text)
        pieces = text.replace(_escaped(self._mark), self._mark).split(self._mark)
        return RenderedPrompt("".join(pieces), self._spellings.breaks_of(pieces))

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._spellings.broken(value, self._mark)
        if isinstance(value, dict):
            return {self._marked(key): self._marked(inner) for key, inner in value.items()}
        return (
            [self._marked(inner) for inner in value] if isinstance(value, list | tuple) else value
        )


def _add_texts(value: Any, texts: list[str]) -> None:
    """Add all texts of JSON data to a list, names of fields too."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _add_texts(key, texts)
            _add_texts(inner, texts)
    elif isinstance(value, list | tuple):
        for inner in value:
            _add_texts(inner, texts)


def _unused_mark(text: str) -> str:
    """Return a character that a text does not have, neither as it is nor as JSON escapes it."""
    used = set(text)
    for mark in CANDIDATES:
        if mark not in used and _escaped(mark) not in text:
            return mark
    raise InvalidRequestError(
        "the conversation spells special tokens and has every private-use character; leave out one "
        "of them",
        param="messages",
    )


def _escaped(mark: str) -> str:
    return json.dumps(mark)[1:-1]
