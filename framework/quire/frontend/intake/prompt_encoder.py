"""Tokenizing of prompts at a cost that the model's length bounds, not the length of what is sent.

A text that is far too long is refused by its size, or after the first parts of it that have too
many tokens. Of a text that is truncated only the side that is kept is tokenized: a part that ends
between two words has the tokens that it has within the whole text, but for those beside its end.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError, PromptTooLongError
from quire.frontend.text.tokenizer import Tokenizer

CHARACTERS = 16  # of a part, for each token that is looked for
EXCESS = 2  # tokens of parts, for each of the whole text that they are a sure sign of
PART_CHARACTERS = 2**16  # at least, of a part that is counted; other work waits for no more
SLACK = 64  # tokens beside the end of a part that are not relied on
_BETWEEN_WORDS = re.compile(r"(?<=\w)(?= \w)")  # every pre-tokenizer splits there
_AFTER_A_WORD = re.compile(r"(?<=\w)(?=\s)")  # nearly every one does


class PromptEncoder:
    """Tokenizes texts for a model of a certain length.

    Args:
        tokenizer: Tokenizer of the model.
        max_model_len: Largest number of tokens, prompt and completion together.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        breaks: Sequence[int] = (),
        field: str = "prompt",
    ) -> list[int]:
        """Return the ids of a text that is not known to be too long without tokenizing all of it.

        Args:
            text: Text to tokenize.
            add_special_tokens: Whether the tokenizer adds the special tokens that it declares.
            breaks: Positions that no special token spans.
            field: Field of the request that has the text, for errors.

        Raises:
            InvalidRequestError: The text is not valid Unicode.
            PromptTooLongError: It is certainly too long.
        """
        check_unicode(text, field)
        self._check_size(text, field)
        self._check_parts(text, field)
        return self._encode(text, add_special_tokens, breaks, 0, len(text))

    def count_part(
        self,
        text: str,
        start: int,
        *,
        add_special_tokens: bool = True,
        breaks: Sequence[int] = (),
        field: str = "prompt",
    ) -> tuple[int, int]:
        """Return the number of tokens of the next part of a text of any length, and its end.

        A text that the model may take is one part. The parts of a longer one end where words do, so
        they have the tokens of the whole text; where it has no words, they may have a few more.

        Args:
            text: Text whose tokens are counted.
            start: Where the part begins.
            add_special_tokens: Whether the special tokens that the tokenizer adds are counted.
            breaks: Positions that no special token spans.
            field: Field of the request that has the text, for errors.

        Raises:
            InvalidRequestError: The part is not valid Unicode.
        """
        size, end = CHARACTERS * self._max_model_len, len(text)
        if len(text) > 2 * size:
            size = min(size, PART_CHARACTERS)
            end = end if end - start <= 2 * size else _end_of_word(text, start, size)
        check_unicode(text[start:end], field)
        has_special = add_special_tokens and start == 0
        return len(self._encode(text, has_special, breaks, start, end)), end

    def check_texts(self, texts: Iterable[str], field: str) -> None:
        """Refuse texts that are too long whatever their tokens are, before they are put together.

        Raises:
            PromptTooLongError: They leave no tokens for a completion.
        """
        least = sum(max(0, self._tokenizer.least_tokens(text) - 1) for text in texts)
        if least >= self._max_model_len:
            raise self._too_long(f"at least {least}", field)

    def encode_prompt(self, parts: Mapping[str, Any]) -> tuple[str | None, list[int]]:
        """Return the text and the ids of a prompt's dict, truncated as it says.

        The text is None if it was truncated: what shows the prompt decodes the tokens.

        Raises:
            InvalidRequestError: The text is not valid Unicode.
            PromptTooLongError: The prompt leaves no tokens for a completion.
        """
        text, token_ids = parts.get("prompt"), parts.get("prompt_token_ids")
        num_kept = self._num_kept(parts.get("truncate_prompt_tokens"))
        is_left = parts.get("truncation_side") != "right"
        if token_ids is None:
            token_ids = self._token_ids(parts, num_kept, is_left)
        if num_kept is not None and num_kept < len(token_ids):
            token_ids = token_ids[-num_kept:] if is_left else token_ids[:num_kept]
            text = None
        if len(token_ids) >= self._max_model_len:
            raise self._too_long(str(len(token_ids)))
        return text, token_ids

    def _token_ids(
        self, parts: Mapping[str, Any], num_kept: int | None, is_left: bool
    ) -> list[int]:
        """Return the ids of a text; if it is truncated, at least one more than are kept."""
        text, breaks = parts["prompt"], parts.get("special_token_breaks") or ()
        has_special = parts.get("add_special_tokens") is not False
        if num_kept is None or num_kept >= self._max_model_len:
            return self.encode(text, add_special_tokens=has_special, breaks=breaks)
        check_unicode(text)
        num_needed = num_kept + SLACK
        size = CHARACTERS * num_needed
        while size < len(text):
            bounds = _left_part(text, size) if is_left else _right_part(text, size)
            ids = self._encode(text, has_special, breaks, *bounds)
            if len(ids) >= num_needed:
                return ids
            size *= 2
        return self._encode(text, has_special, breaks, 0, len(text))

    def _encode(
        self, text: str, add_special_tokens: bool, breaks: Sequence[int], start: int, end: int
    ) -> list[int]:
        """Return the ids of a part of a text."""
        if breaks:
            inner = [at - start for at in breaks if start < at < end]
            return self._tokenizer.encode_broken(text[start:end], inner, add_special_tokens)
        return self._tokenizer.encode(text[start:end], add_special_tokens)

    def _check_size(self, text: str, field: str) -> None:
        """Refuse a text that is too long whatever its tokens are.

        Raises:
            PromptTooLongError: It leaves no tokens for a completion.
        """
        if len(text) < self._max_model_len:  # then it is not known to be too long
            return
        least = self._tokenizer.least_tokens(text)
        if least >= self._max_model_len:
            raise self._too_long(f"at least {least}", field)

    def _check_parts(self, text: str, field: str) -> None:
        """Refuse a text whose first parts have far too many tokens, before all is tokenized.

        Raises:
            PromptTooLongError: It leaves no tokens for a completion.
        """
        size, num_tokens = CHARACTERS * self._max_model_len, 0
        for start in range(0, len(text), size) if len(text) > 2 * size else ():
            num_tokens += len(self._tokenizer.encode(text[start : start + size], False))
            if num_tokens >= EXCESS * self._max_model_len:
                raise self._too_long(f"more than {self._max_model_len}", field)

    def _num_kept(self, limit: int | None) -> int | None:
        """Number of tokens that truncation leaves; -1 leaves room for one token."""
        return self._max_model_len - 1 if limit == -1 else limit

    def _too_long(self, num_tokens: str, field: str = "prompt") -> PromptTooLongError:
        what = "the prompt" if field == "prompt" else field
        return PromptTooLongError(
            f"{what} has {num_tokens} tokens and leaves no room for a completion: this model "
            f"takes {self._max_model_len} tokens, prompt and completion together",
            param=field,
        )


def check_unicode(text: str, field: str = "prompt") -> None:
    """Check that a text can be encoded.

    Raises:
        InvalidRequestError: It has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = "the prompt" if field == "prompt" else field
        raise InvalidRequestError(f"{what} is not valid Unicode: {error}", param=field) from error


def _end_of_word(text: str, start: int, size: int) -> int:
    """Return where a part of `size` to twice as many characters ends, if possible after a word."""
    bounds = start + size, start + 2 * size
    found = _BETWEEN_WORDS.search(text, *bounds) or _AFTER_A_WORD.search(text, *bounds)
    return bounds[1] if found is None else found.start()


def _left_part(text: str, size: int) -> tuple[int, int]:
    """Return the bounds of the end of a text: at most `size` characters, from between two words."""
    start = len(text) - size
    found = _BETWEEN_WORDS.search(text, start, start + size // 2)
    return (start if found is None else found.start()), len(text)


def _right_part(text: str, size: int) -> tuple[int, int]:
    """Return the bounds of the beginning of a text, of at most `size` characters."""
    found = _BETWEEN_WORDS.search(text, size // 2, size)
    return 0, (size if found is None else found.start())
