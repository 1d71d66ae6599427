"""The type of the request field that holds a second prompt, for steps that compare logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidRequestError
from quire.interfaces.field_types import (
    MAX_INT32,
    Cells,
    Column,
    FieldType,
    FieldVocabulary,
    checked_number,
    checked_text,
    shown,
)

MAX_BYTES = 2**20
MAX_TOKENS = 2**20


@dataclass(frozen=True, slots=True)
class CompanionPrompt(FieldType):
    """The prompt of a companion, as a text or as token ids; no device columns.

    A request in which the field `switch` does not have its default is computed twice: after its own
    prompt, and by a companion after this one, which gets the same tokens. A step finds such rows at
    `SampledRows.guided`, and those of their companions at `SampledRows.companions`. An empty prompt
    is the last token of the request's own. The field's default is an empty text.

    Attributes:
        switch: Name of a field of the same step, a number.
    """

    switch: str

    def check(self, value: Any, name: str) -> str | list[int]:
        """Return the text or the token ids.

        Raises:
            InvalidRequestError: It is neither, too long, or not valid Unicode.
        """
        if isinstance(value, str):
            return checked_text(value, name, MAX_BYTES)
        if not isinstance(value, list | tuple):
            raise InvalidRequestError(
                f"{name} must be a text or a list of token ids, got {shown(value)}", param=name
            )
        if len(value) > MAX_TOKENS:
            raise InvalidRequestError(
                f"{name} has {len(value)} items; it takes at most {MAX_TOKENS}", param=name
            )
        return list(value)

    def resolve(
        self, value: str | Sequence[int], name: str, vocabulary: FieldVocabulary
    ) -> str | list[int]:
        """Return a text as it is, and token ids that the vocabulary has.

        Raises:
            InvalidRequestError: One of them is not a token id.
        """
        if isinstance(value, str):
            return value
        last = vocabulary.size - 1
        return [
            int(checked_number(token_id, f"{name}[{index}]", int, 0, last, name))
            for index, token_id in enumerate(value)
        ]

    def json_schema(self) -> dict[str, Any]:
        """Return a text or an array of token ids, with limits."""
        token_ids = {"type": "integer", "minimum": 0, "maximum": MAX_INT32}
        return {
            "anyOf": [
                {"type": "string", "maxLength": MAX_BYTES},
                {"type": "array", "items": token_ids, "maxItems": MAX_TOKENS},
            ]
        }

    def columns(self, vocab_size: int) -> tuple[Column, ...]:
        """Return no columns: the prompt is the companion's, and no step reads it."""
        del vocab_size
        return ()

    def cells(self, value: str | Sequence[int], vocab_size: int) -> Cells:
        """Return no cells."""
        del value, vocab_size
        return ()
