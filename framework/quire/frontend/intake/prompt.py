"""Prompt formats (text, token ids, or a dict of both with options) and their validation."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from quire.errors import InvalidRequestError

PROMPT_KEYS = (
    "prompt", "prompt_token_ids", "add_special_tokens", "cache_salt", "truncate_prompt_tokens",
    "truncation_side", "special_token_breaks", "shown_special_tokens", "opening",
    "has_tools",
)  # fmt: skip
MAX_SALT_CHARACTERS = 128
MAX_TRUNCATE_TOKENS = 2**31 - 1
TRUNCATION_SIDES = ("left", "right")
_INT = {int}


class EncodedPrompt(msgspec.Struct, frozen=True):
    """A tokenized prompt.

    Attributes:
        text: Its text if it was given as text, and is not truncated.
        opening: End of the text that a chat template wrote behind a conversation, or the text of
            the assistant that is continued; None: unknown.
        shown_special_tokens: Ids of special tokens that the text of a completion has although
            `skip_special_tokens` leaves out others: its parsers read them.
        has_tools: Whether its completions are read for tool calls.
    """

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None
    shown_special_tokens: frozenset[int] = frozenset()
    opening: str | None = None
    has_tools: bool = False


def prompt_parts(prompt: object) -> dict[str, Any]:
    """Return a prompt as a dict, with keys and types checked.

    Raises:
        InvalidRequestError: It is not a prompt; `param` names the invalid part.
    """
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, list | tuple):
        return {"prompt_token_ids": prompt}
    if not isinstance(prompt, dict):
        raise InvalidRequestError(
            f"a prompt must be text, token ids or a dict, got {type(prompt).__name__}",
            param="prompt",
        )
    for key, value in prompt.items():
        _check_part(key, value)
    _check_salt(prompt.get("cache_salt"))
    _check_truncation(prompt.get("truncate_prompt_tokens"), prompt.get("truncation_side"))
    if prompt.get("special_token_breaks"):
        _check_breaks(prompt["special_token_breaks"], prompt)
    if prompt.get("prompt") is None and prompt.get("prompt_token_ids") is None:
        raise InvalidRequestError(
            "a prompt dict needs `prompt` or `prompt_token_ids`", param="prompt"
        )
    return prompt


def _check_part(key: object, value: object) -> None:
    types: dict[object, type | tuple[type, ...]] = {
        "prompt": str,
        "prompt_token_ids": (list, tuple),
        "add_special_tokens": bool,
        "cache_salt": object,  # checked by `_check_salt`
        "truncate_prompt_tokens": object,  # checked by `_check_truncation`
        "truncation_side": object,
        "special_token_breaks": (list, tuple),
        "shown_special_tokens": (list, tuple, frozenset),
        "opening": str,
        "has_tools": bool,
    }
    if key not in types:
        raise InvalidRequestError(
            f"a prompt dict has no key {key!r}; its keys are {', '.join(PROMPT_KEYS)}",
            param="prompt",
        )
    if value is not None and not isinstance(value, types[key]):
        raise InvalidRequestError(
            f"{key} of a prompt cannot be a {type(value).__name__}", param="prompt"
        )


def _check_salt(salt: object) -> None:
    """Check the salt of the prefix cache: printable text, so that it can be read in logs."""
    if salt is None:
        return
    is_text = isinstance(salt, str) and salt.isprintable()
    if not is_text or not 1 <= len(salt) <= MAX_SALT_CHARACTERS:  # type: ignore[arg-type]
        raise InvalidRequestError(
            f"cache_salt must be text of 1 to {MAX_SALT_CHARACTERS} printable characters, such as "
            "the hex form of a hash",
            param="cache_salt",
        )


def _check_truncation(num_tokens: object, side: object) -> None:
    if num_tokens is not None:
        is_int = isinstance(num_tokens, int) and not isinstance(num_tokens, bool)
        is_count = is_int and 1 <= num_tokens <= MAX_TRUNCATE_TOKENS  # type: ignore[operator]
        if not is_count and not (is_int and num_tokens == -1):
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be -1 (as many as the model takes) or a whole number "
                f"from 1 to {MAX_TRUNCATE_TOKENS}, got {num_tokens!r:.100}",
                param="truncate_prompt_tokens",
            )
    if side is not None and (not isinstance(side, str) or side not in TRUNCATION_SIDES):
        raise InvalidRequestError(
            f"truncation_side must be left or right, the side that is cut, got {side!r:.100}",
            param="truncation_side",
        )
    if side is not None and num_tokens is None:
        raise InvalidRequestError(
            "truncation_side needs truncate_prompt_tokens, the number of tokens to keep",
            param="truncation_side",
        )


def _check_breaks(breaks: Sequence[object], prompt: dict[str, Any]) -> None:
    if not isinstance(prompt.get("prompt"), str):
        raise InvalidRequestError("special_token_breaks need a text", param="special_token_breaks")
    ends = [-1, *breaks, len(prompt["prompt"])]
    are_whole = all(type(end) is int for end in ends)
    if not are_whole or any(i >= j for i, j in pairwise(ends)):  # type: ignore[operator]
        raise InvalidRequestError(
            "special_token_breaks must be ascending positions within the text",
            param="special_token_breaks",
        )


def check_token_ids(token_ids: Sequence[Any], vocab_size: int, param: str) -> None:
    """Check that all ids are token ids of the model.

    Raises:
        InvalidRequestError: One is not; `param` names the field.
    """
    if not token_ids:
        return
    are_ints = set(map(type, token_ids)) == _INT
    if are_ints and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    for token_id in token_ids:
        is_int = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_int or not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{param} holds {token_id!r}; token ids of this model are whole numbers from 0 to "
                f"{vocab_size - 1}",
                param=param,
            )
