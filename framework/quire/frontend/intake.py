"""Every check of a request happens here, before the engine hears of it; after that it is complete.

One prompt becomes n requests that differ in `child` alone: same tokens, same seed.
"""

import logging
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from quire.errors import (
    GrammarError,
    InvalidRequestError,
    PromptTooLongError,
    RequestError,
    RequestFailedError,
)
from quire.frontend.thinking import Thinking
from quire.frontend.tokenizer import Tokenizer
from quire.interfaces.sampling import RequestField
from quire.messages import AdapterRef, EngineRequest
from quire.outputs import Prompt
from quire.registry import Source
from quire.sampling_params import SamplingParams, StructuredOutputsParams

logger = logging.getLogger(__name__)

SEED_BITS = 63
PROMPT_KEYS = ("prompt", "prompt_token_ids", "add_special_tokens", "cache_salt")

RequestHook = tuple[Source, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as text, if it came as text, and as tokens."""

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of one prompt: n requests, ready for the engine."""

    request_id: str
    prompt: EncodedPrompt
    requests: tuple[EngineRequest, ...]


class Intake:
    """Turns prompts and `SamplingParams` into complete engine requests.

    Args:
        tokenizer: The model's.
        max_model_len: Tokens of prompt and answer together, at most.
        vocab_size: V of the model: ids from here on do not exist.
        fields: Every request field that the composed sampler steps read.
        hooks: The plugins' `request_received`, with who they belong to.
        check_grammar: Looks at a form before it is queued; raises `GrammarError`.
        thinking: How the model thinks, if it does: a form begins behind it.
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
    ) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._fields = {field.name: field for field in fields}
        self._hooks = tuple(hooks)
        self._check_grammar = check_grammar
        self._thinking = thinking
        self._checked_form: StructuredOutputsParams | None = None  # a batch's is looked at once

    @property
    def extra_fields(self) -> tuple[RequestField, ...]:
        """Fields that plugins add to the request; over HTTP, further fields of the body."""
        known = SamplingParams.__struct_fields__
        return tuple(field for field in self._fields.values() if field.name not in known)

    def admit(
        self,
        prompt: Prompt | EncodedPrompt,
        params: SamplingParams,
        *,
        adapter: AdapterRef | None = None,
        priority: int = 0,
    ) -> Admission:
        """Check a prompt and what is asked of it.

        Args:
            prompt: Text, token ids, or a dict with `prompt` or `prompt_token_ids` (with both, the
                ids count and the text is kept for the output), `add_special_tokens`, `cache_salt`;
                or what `encode` returned.
            params: How to generate.
            adapter: The LoRA adapter, resolved.
            priority: Only 0 is served yet.

        Raises:
            InvalidRequestError: A value is out of range, or a field does not exist.
            PromptTooLongError: There is no room for an answer.
            GrammarError: The form that is asked for cannot be honoured.
            RequestError: A plugin refuses the request.
            RequestFailedError: A plugin failed.
        """
        if priority != 0:
            raise InvalidRequestError(
                f"priorities are not served yet; leave it out or send 0, got {priority!r}",
                param="priority",
            )
        encoded = prompt if isinstance(prompt, EncodedPrompt) else self.encode(prompt)
        request_id = uuid.uuid4().hex
        first = EngineRequest(
            request_id=f"{request_id}-0",
            token_ids=encoded.token_ids,
            params=params,
            fields=self._resolve_fields(params),
            max_tokens=self._resolve_max_tokens(len(encoded.token_ids), params),
            seed=secrets.randbits(SEED_BITS) if params.seed is None else params.seed,
            stop_token_ids=self._resolve_stop_token_ids(params),
            thinking_end_token_id=self._resolve_form(encoded, params),
            adapter=adapter,
            priority=priority,
            cache_salt=encoded.cache_salt,
            arrival_s=time.monotonic(),
        )
        requests = (first, *(_child(first, request_id, i) for i in range(1, params.n)))
        for request in requests:
            self._run_hooks(request)
        return Admission(request_id, encoded, requests)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Return a prompt's tokens, checked.

        Raises:
            InvalidRequestError: It is empty, or not a prompt.
            PromptTooLongError: It is longer than the model's length.
        """
        parts = _prompt_parts(prompt)
        text, token_ids = parts.get("prompt"), parts.get("prompt_token_ids")
        if token_ids is None:
            token_ids = self._encode_text(text, parts.get("add_special_tokens") is not False)
        else:
            _check_token_ids(token_ids, self._vocab_size, "prompt")
            token_ids = list(token_ids)
        if not token_ids:
            raise InvalidRequestError("the prompt is empty: it has no tokens", param="prompt")
        if len(token_ids) >= self._max_model_len:
            raise PromptTooLongError(
                f"the prompt has {len(token_ids)} tokens and leaves no room for an answer: this "
                f"model takes {self._max_model_len} tokens, prompt and answer together",
                param="prompt",
            )
        return EncodedPrompt(text, token_ids, parts.get("cache_salt"))

    def _encode_text(self, text: Any, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the prompt is not valid Unicode: {error}", param="prompt"
            ) from error
        token_ids = self._tokenizer.encode(text, add_special_tokens)
        _check_token_ids(token_ids, self._vocab_size, "prompt")
        return token_ids

    def _resolve_max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        room = self._max_model_len - num_prompt_tokens
        if params.min_tokens > room:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, but after a prompt of {num_prompt_tokens} "
                f"tokens this model has room for {room}",
                param="min_tokens",
            )
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def _resolve_stop_token_ids(self, params: SamplingParams) -> tuple[int, ...]:
        _check_token_ids(params.stop_token_ids, self._vocab_size, "stop_token_ids")
        own = () if params.ignore_eos else self._tokenizer.eos_token_ids
        return tuple(dict.fromkeys((*own, *params.stop_token_ids)))

    def _resolve_form(self, prompt: EncodedPrompt, params: SamplingParams) -> int | None:
        """Check the form; return the token behind which it begins, None for the answer's start."""
        form = params.structured_outputs
        if form is None:
            return None
        try:
            self._check_form(form)
            if self._thinking is None:
                return None
            return self._thinking.end_token_id(prompt.text, prompt.token_ids)
        except GrammarError as error:
            if error.param is None:
                error.param = "structured_outputs" if form.calls is None else "tools"
            raise

    def _check_form(self, form: StructuredOutputsParams) -> None:
        if self._check_grammar is None or form is self._checked_form:
            return
        try:
            self._check_grammar(form)
        except RequestError:
            raise
        except Exception as error:
            logger.exception("the structured-output backend failed to check a form")
            raise RequestFailedError(
                "the structured-output backend failed on this form; the server's log says how"
            ) from error
        self._checked_form = form

    def _resolve_fields(self, params: SamplingParams) -> dict[str, Any]:
        """Return every sampler field: from the parameters, else from extra_args, else default."""
        known = SamplingParams.__struct_fields__
        self._check_extra_args(params.extra_args)
        values = {}
        for name, field in self._fields.items():
            given = (
                getattr(params, name)
                if name in known
                else params.extra_args.get(name, field.default)
            )
            values[name] = field.check(given)
        return values

    def _check_extra_args(self, extra_args: Mapping[str, Any]) -> None:
        offered = [field.name for field in self.extra_fields]
        for name in extra_args:
            if name not in offered:
                near = get_close_matches(str(name), offered, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                listed = ", ".join(offered) or "none"
                raise InvalidRequestError(
                    f"there is no request field {name!r}{hint} (the samplers in use add: {listed})",
                    param=str(name),
                )

    def _run_hooks(self, request: EngineRequest) -> None:
        for source, hook in self._hooks:
            try:
                hook(request=request)
            except RequestError:
                raise
            except Exception as error:
                logger.exception("plugin %s failed in request_received", source)
                raise RequestFailedError(
                    f"plugin {source} failed on this request; the server's log says how"
                ) from error


def _child(first: EngineRequest, request_id: str, child: int) -> EngineRequest:
    """Return another answer's request to the same prompt."""
    return msgspec.structs.replace(first, request_id=f"{request_id}-{child}", child=child)


def _prompt_parts(prompt: object) -> dict[str, Any]:
    """Return a prompt in its dict form, its keys and types checked."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, list | tuple):
        return {"prompt_token_ids": prompt}
    if not isinstance(prompt, dict):
        raise InvalidRequestError(
            f"a prompt is text, token ids or a dict, got {type(prompt).__name__}", param="prompt"
        )
    for key, value in prompt.items():
        _check_part(key, value)
    if prompt.get("prompt") is None and prompt.get("prompt_token_ids") is None:
        raise InvalidRequestError(
            "a prompt dict needs `prompt` or `prompt_token_ids`", param="prompt"
        )
    return prompt


def _check_part(key: object, value: object) -> None:
    kinds: dict[object, type | tuple[type, ...]] = {
        "prompt": str,
        "prompt_token_ids": (list, tuple),
        "add_special_tokens": bool,
        "cache_salt": str,
    }
    if key not in kinds:
        raise InvalidRequestError(
            f"a prompt has no part {key!r}; it may have {', '.join(PROMPT_KEYS)}", param="prompt"
        )
    if value is not None and not isinstance(value, kinds[key]):
        raise InvalidRequestError(
            f"{key} of a prompt cannot be a {type(value).__name__}", param="prompt"
        )


def _check_token_ids(token_ids: Sequence[Any], vocab_size: int, param: str) -> None:
    for token_id in token_ids:
        is_int = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_int or not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{param} holds {token_id!r}; token ids of this model are whole numbers from 0 to "
                f"{vocab_size - 1}",
                param=param,
            )
