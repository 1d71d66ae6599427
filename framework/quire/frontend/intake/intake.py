"""Validation of requests, and their conversion to complete `EngineRequest`s.

One prompt becomes n requests that differ in `child` alone: same tokens, same seed.
"""

import math
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from quire.errors import (
    GrammarError,
    InvalidRequestError,
    PromptTooLongError,
    RequestError,
)
from quire.frontend.chat.thinking import Thinking
from quire.frontend.intake.prompt import EncodedPrompt, check_token_ids, prompt_parts
from quire.frontend.intake.request_hooks import RequestHook, WatchedHook
from quire.frontend.plugin_failure import plugin_failure
from quire.frontend.text.tokenizer import Tokenizer
from quire.interfaces.sampling import RequestField
from quire.messages import AdapterRef, EngineRequest
from quire.outputs import Prompt
from quire.sampling_params import LIMITS, SamplingParams, StructuredOutputsParams

SEED_BITS = 63
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
MAX_TIMEOUT_S = 1e9


@dataclass(frozen=True, slots=True)
class AdmittedPrompt:
    """An accepted prompt with its n requests, ready for the engine."""

    request_id: str
    prompt: EncodedPrompt
    requests: tuple[EngineRequest, ...]


class Intake:
    """Turns prompts and `SamplingParams` into complete engine requests.

    Args:
        tokenizer: Tokenizer of the model.
        max_model_len: Largest number of tokens, prompt and completion together.
        vocab_size: V of the model, the upper bound of token ids.
        fields: Request fields that the samplers in use read.
        hooks: `request_received` hooks, each with its plugin.
        check_grammar: Function that validates a structured-output constraint; raises
            `GrammarError`.
        thinking: The model's reasoning format, if it has one: constraints apply after it.
        has_priorities: Whether the scheduling policy reads priorities.

    Attributes:
        extra_fields: Fields that plugins add to the request, by name; over HTTP, additional fields
            of the body.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_model_len: int,
        vocab_size: int,
        fields: Sequence[RequestField] = (),
        hooks: Sequence[RequestHook] = (),
        check_grammar: Callable[[StructuredOutputsParams], None] | None = None,
        thinking: Thinking | None = None,
        has_priorities: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        known = SamplingParams.__struct_fields__
        self.extra_fields = {field.name: field for field in fields if field.name not in known}
        self._narrower = [field for field in fields if field.name in known and _narrows(field)]
        self._hooks = [WatchedHook(source, call) for source, call in hooks]
        self._check_grammar = check_grammar
        self._thinking = thinking
        self._has_priorities = has_priorities
        # The last one that passed: the requests of a batch often share one.
        self._checked_constraint: StructuredOutputsParams | None = None

    @property
    def failing_hooks(self) -> list[WatchedHook]:
        """The `request_received` hooks that fail on every request."""
        return [hook for hook in self._hooks if hook.is_failing]

    def admit(
        self,
        prompt: Prompt | EncodedPrompt,
        params: SamplingParams,
        *,
        adapter: AdapterRef | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> AdmittedPrompt:
        """Check a prompt with its parameters, and make its requests.

        Args:
            prompt: Text, token ids, or a dict with `prompt` or `prompt_token_ids` (with both, the
                ids are used and the text is kept for the output), `add_special_tokens`,
                `cache_salt`; or a result of `encode`.
            params: Sampling parameters.
            adapter: LoRA adapter, resolved.
            priority: Priority, smaller first; must be 0 unless the scheduling policy reads it.
            timeout_s: Seconds from now that the request may take; the engine's limit may be
                shorter.

        Raises:
            InvalidRequestError: A value is out of range, or a field does not exist.
            PromptTooLongError: The prompt leaves no tokens for a completion.
            GrammarError: The structured-output constraint is not supported.
            RequestError: A plugin refuses the request.
            RequestFailedError: A plugin failed.
        """
        self._check_priority(priority)
        _check_timeout(timeout_s)
        encoded = prompt if isinstance(prompt, EncodedPrompt) else self.encode(prompt)
        request_id = uuid.uuid4().hex
        first = EngineRequest(
            request_id=f"{request_id}-0",
            token_ids=encoded.token_ids,
            params=self._resolve_fields(params),
            max_tokens=self._resolve_max_tokens(len(encoded.token_ids), params),
            seed=secrets.randbits(SEED_BITS) if params.seed is None else params.seed,
            stop_token_ids=self._resolve_stop_token_ids(params),
            thinking_end_token_id=self._resolve_constraint(encoded, params),
            adapter=adapter,
            priority=priority,
            cache_salt=encoded.cache_salt,
            arrival_s=time.monotonic(),
            timeout_s=timeout_s,
        )
        requests = (first, *_sibling_requests(first, request_id))
        for request in requests:
            for hook in self._hooks:
                hook.received(request)
        return AdmittedPrompt(request_id, encoded, requests)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Tokenize a prompt and check its tokens.

        Raises:
            InvalidRequestError: It is empty, or not a prompt.
            PromptTooLongError: It leaves no tokens for a completion.
        """
        parts = prompt_parts(prompt)
        text, token_ids = parts.get("prompt"), parts.get("prompt_token_ids")
        if token_ids is None:
            token_ids = self._encode_text(text, parts.get("add_special_tokens") is not False)
        if not token_ids:
            raise InvalidRequestError("the prompt is empty: it has no tokens", param="prompt")
        if len(token_ids) >= self._max_model_len:
            raise PromptTooLongError(
                f"the prompt has {len(token_ids)} tokens and leaves no room for a completion: this "
                f"model takes {self._max_model_len} tokens, prompt and completion together",
                param="prompt",
            )
        check_token_ids(token_ids, self._vocab_size, "prompt")
        return EncodedPrompt(text, list(token_ids), parts.get("cache_salt"))

    def _check_priority(self, priority: object) -> None:
        is_int = isinstance(priority, int) and not isinstance(priority, bool)
        if not is_int or not MIN_PRIORITY <= priority <= MAX_PRIORITY:  # type: ignore[operator]
            raise InvalidRequestError(
                f"priority must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}, got "
                f"{priority!r:.100}",
                param="priority",
            )
        if priority != 0 and not self._has_priorities:
            raise InvalidRequestError(
                f"priority is {priority}, but this engine serves first come, first served; start "
                "it with --scheduling-policy priority, or send 0",
                param="priority",
            )

    def _encode_text(self, text: Any, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the prompt is not valid Unicode: {error}", param="prompt"
            ) from error
        return self._tokenizer.encode(text, add_special_tokens)

    def _resolve_max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        num_available = self._max_model_len - num_prompt_tokens
        if params.min_tokens > num_available:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, but after a prompt of {num_prompt_tokens} "
                f"tokens this model has room for {num_available}",
                param="min_tokens",
            )
        return num_available if params.max_tokens is None else min(params.max_tokens, num_available)

    def _resolve_stop_token_ids(self, params: SamplingParams) -> tuple[int, ...]:
        check_token_ids(params.stop_token_ids, self._vocab_size, "stop_token_ids")
        own = () if params.ignore_eos else self._tokenizer.eos_token_ids
        return tuple(dict.fromkeys((*own, *params.stop_token_ids)))

    def _resolve_constraint(self, prompt: EncodedPrompt, params: SamplingParams) -> int | None:
        """Check the constraint; return the token after which it applies, None for the start."""
        constraint = params.structured_outputs
        if constraint is None:
            return None
        try:
            self._check_constraint(constraint)
            if self._thinking is None:
                return None
            return self._thinking.end_token_id(prompt.text, prompt.token_ids)
        except GrammarError as error:
            if error.param is None:
                error.param = "structured_outputs" if constraint.calls is None else "tools"
            raise

    def _check_constraint(self, constraint: StructuredOutputsParams) -> None:
        if self._check_grammar is None or constraint is self._checked_constraint:
            return
        try:
            self._check_grammar(constraint)
        except RequestError:
            raise
        except Exception as error:
            raise plugin_failure(
                error,
                "the structured-output backend",
                "while checking a constraint",
                subject="on this request's constraint",
            ) from error
        self._checked_constraint = constraint

    def _resolve_fields(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with every field that samplers add; all are checked."""
        self._check_extra_args(params.extra_args)
        for field in self._narrower:
            field.check(getattr(params, field.name))
        if not self.extra_fields:
            return params
        extra_args = {
            name: field.check(params.extra_args.get(name, field.default))
            for name, field in self.extra_fields.items()
        }
        return msgspec.structs.replace(params, extra_args=extra_args)

    def _check_extra_args(self, extra_args: Mapping[str, Any]) -> None:
        for name in extra_args:
            if name not in self.extra_fields:
                near = get_close_matches(str(name), self.extra_fields, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                listed = ", ".join(self.extra_fields) or "none"
                raise InvalidRequestError(
                    f"there is no request field {name!r}{hint} (the samplers in use add: {listed})",
                    param=str(name),
                )


def _narrows(field: RequestField) -> bool:
    """Return whether a sampler's limits refuse values that `SamplingParams` accepts."""
    low, high = LIMITS.get(field.name, (-math.inf, math.inf))
    has_type = field.type is type(getattr(SamplingParams(), field.name))
    return not has_type or field.minimum > low or field.maximum < high


def _sibling_requests(first: EngineRequest, request_id: str) -> Iterator[EngineRequest]:
    """Yield the requests for the other completions; prompt logprobs come from the first one."""
    params = first.params
    if params.prompt_logprobs is not None:
        params = msgspec.structs.replace(params, prompt_logprobs=None)
    for child in range(1, params.n):
        yield msgspec.structs.replace(
            first, request_id=f"{request_id}-{child}", child=child, params=params
        )


def _check_timeout(timeout_s: object) -> None:
    if timeout_s is None:
        return
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise InvalidRequestError(
            f"timeout_s must be a number of seconds greater than 0, got {timeout_s!r:.100}",
            param="timeout_s",
        )
