"""Companions of requests: second prompts that sampler steps compare with the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError, PromptTooLongError
from quire.frontend.intake.prompt import check_token_ids
from quire.interfaces.companion_prompt import CompanionPrompt
from quire.interfaces.sampling import RequestField
from quire.messages import Companion
from quire.sampling_params import SamplingParams


class Companions:
    """Makes the companions that the sampler fields of requests ask for.

    Args:
        fields: Request fields of the samplers in use; at most one is a `CompanionPrompt`.
        encode: Function that returns the token ids of a text, with special tokens; its second
            argument is the name of the text's field.
        max_model_len: Largest number of tokens, prompt and completion together.
        vocab_size: V, the upper bound of token ids.
    """

    def __init__(
        self,
        fields: Sequence[RequestField],
        encode: Callable[[str, str], list[int]],
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self._encode = encode
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._prompt: RequestField | None = None
        self._switch: RequestField | None = None
        for field in fields:
            if isinstance(field.type, CompanionPrompt):
                self._prompt = field
                self._switch = next(each for each in fields if each.name == field.type.switch)

    def make(
        self,
        fields: Mapping[str, Any],
        prompt: Sequence[int],
        neutral: Callable[[], SamplingParams],
    ) -> Companion | None:
        """Return the companion of a request, if it needs one.

        Args:
            fields: Sampler fields of the request, resolved.
            prompt: Tokens of its prompt.
            neutral: Function that returns complete parameters to which no step reacts.

        Raises:
            InvalidRequestError: It has a prompt for a companion and does not need one, or the
                tokenizer gives the text tokens that the model does not have.
            PromptTooLongError: The prompt leaves no tokens for a completion.
        """
        if self._prompt is None or self._switch is None:
            return None
        name, given = self._prompt.name, fields[self._prompt.name]
        if fields[self._switch.name] == self._switch.default:
            if given:
                switch = self._switch
                raise InvalidRequestError(
                    f"{name} does nothing while {switch.name} is {switch.default:g}; send another "
                    f"value for it, or leave {name} out",
                    param=name,
                )
            return None
        token_ids = self._encoded(name, given)
        check_token_ids(token_ids, self._vocab_size, name)
        if len(token_ids) >= self._max_model_len:
            raise PromptTooLongError(
                f"{name} has {len(token_ids)} tokens and leaves no room for a completion: this "
                f"model takes {self._max_model_len} tokens, prompt and completion together",
                param=name,
            )
        return Companion(token_ids or list(prompt[-1:]), neutral())

    def text_size(self, params: SamplingParams) -> int:
        """Return the number of characters of the companion's prompt that are not tokens yet."""
        given = "" if self._prompt is None else params.extra_args.get(self._prompt.name)
        return len(given) if isinstance(given, str) else 0

    def with_tokens(self, params: SamplingParams) -> SamplingParams:
        """Return parameters with the token ids of the companion's prompt in place of its text.

        Raises:
            InvalidRequestError: The text is too long, or not valid Unicode.
        """
        if self._prompt is None or not self.text_size(params):
            return params
        name = self._prompt.name
        token_ids = self._encoded(name, self._prompt.check(params.extra_args[name]))
        extra_args = {**params.extra_args, name: token_ids}
        return params.with_extra_args(extra_args)

    def _encoded(self, name: str, given: str | Sequence[int]) -> list[int]:
        if isinstance(given, str):
            return self._encode(given, name) if given else []
        return list(map(int, given))

    def without_prompt(self, params: SamplingParams) -> SamplingParams:
        """Return parameters without the prompt of a companion, which the worker does not need."""
        if self._prompt is None or not params.extra_args.get(self._prompt.name):
            return params
        extra_args = {**params.extra_args, self._prompt.name: self._prompt.default}
        return params.with_extra_args(extra_args)
