"""Validation of requests, and their conversion to complete `EngineRequest`s.

One prompt becomes n requests that differ in `child` alone: same tokens, same seed.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import msgspec

from quire.errors import (
    GrammarError,
    InvalidRequestError,
)
from quire.frontend.chat.parsing.thinking import Thinking
from quire.frontend.intake.companions import Companions
from quire.frontend.intake.constraint_checks import CheckGrammar, ConstraintChecks
from quire.frontend.intake.logits_processor_names import LogitsProcessorNames
from quire.frontend.intake.prompt import EncodedPrompt, check_token_ids, prompt_parts
from quire.frontend.intake.prompt_encoder import PromptEncoder
from quire.frontend.intake.request_hooks import RequestHook, WatchedHook
from quire.frontend.intake.time_limit import check_timeout
from quire.frontend.random_bytes import random_bytes
from quire.frontend.text.stop_regex import compile_stop_regexes
from quire.frontend.text.tokenizer import Tokenizer
from quire.interfaces.field_types import MAX_SHOWN, FieldType, FieldVocabulary, shown
from quire.interfaces.sampling import RequestField
from quire.messages import AdapterRef, EngineRequest, MarkerTokens, ThinkingBudget
from quire.outputs import Prompt
from quire.sampling_params import (
    LIMITS,
    MAX_CANDIDATES,
    MAX_LOGPROBS,
    BeamSearchParams,
    SamplingParams,
    StructuredOutputsParams,
)

SEED_BITS = 63
MAX_PROMPT_CANDIDATES = 2**25  # log probabilities of one prompt; 12 bytes each on the device
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
SAMPLER_PARAMS = {  # that only samplers read, each with its neutral value
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "allowed_token_ids": (),
    "bad_words": (),
}


class AdmittedPrompt(msgspec.Struct, frozen=True):
    """An accepted prompt with its n or best_of requests, ready for the engine.

    Attributes:
        hides_logprobs: Whether log probabilities are there to find the best completions only.
    """

    request_id: str
    prompt: EncodedPrompt
    requests: tuple[EngineRequest, ...]
    hides_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class _Default:
    """Default of a parameter: as a request has it, and as samplers get it."""

    given: Any
    resolved: Any


class Intake:
    """Turns prompts and `SamplingParams` into complete engine requests.

    Args:
        tokenizer: Tokenizer of the model.
        max_model_len: Largest number of tokens, prompt and completion together.
        vocab_size: V of the model, the upper bound of token ids.
        fields: Request fields that the samplers in use read.
        offered_fields: Request fields of installed samplers that are not in use -> how to use one.
        logits_processors: Names that requests may have in `logits_processors`; None: no names.
        hooks: `request_received` hooks, each with its plugin.
        check_grammar: Function that validates a structured-output constraint; raises
            `GrammarError`.
        thinking: The model's reasoning format, if it has one: constraints apply after it.
        has_priorities: Whether the scheduling policy reads priorities.
        max_logprobs: Maximum number of most likely tokens to report at a position; -1: V.
        logprobs_mode: Values that the engine reports as log probabilities, one of
            `config.LOGPROBS_MODES`.

    Attributes:
        has_priorities: Whether the scheduling policy reads priorities.
        fields: Request fields that the engine's samplers read.
        extra_fields: Fields that plugins add to the request, by name; over HTTP, additional fields
            of the body.
        logits_processors: Names that requests may have in `logits_processors`.
        prompts: Encoder of texts.
        companions: Maker of the companions that sampler fields ask for.
        has_priorities: Whether the scheduling policy reads priorities.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_model_len: int,
        vocab_size: int,
        fields: Sequence[RequestField] = (),
        offered_fields: Mapping[str, str] = MappingProxyType({}),
        logits_processors: LogitsProcessorNames | None = None,
        hooks: Sequence[RequestHook] = (),
        check_grammar: CheckGrammar | None = None,
        thinking: Thinking | None = None,
        has_priorities: bool = False,
        max_logprobs: int = 20,
        logprobs_mode: str = "raw_logprobs",
    ) -> None:
        self._tokenizer = tokenizer
        self.prompts = PromptEncoder(tokenizer, max_model_len)
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self.fields = tuple(fields)
        known = SamplingParams.__struct_fields__
        self.offered_fields = offered_fields
        self.logits_processors = logits_processors or LogitsProcessorNames()
        declared = {field.name for field in fields}
        self._unread = [
            (name, default) for name, default in SAMPLER_PARAMS.items() if name not in declared
        ]
        self.extra_fields = {field.name: field for field in fields if field.name not in known}
        narrower = [field for field in fields if field.name in known and _narrows(field)]
        self._vocabulary = FieldVocabulary(
            vocab_size, lambda text: tokenizer.encode(text, add_special_tokens=False)
        )
        self._defaults = {
            name: self._resolved(field, field.default) for name, field in self.extra_fields.items()
        }
        self._narrower = [(field, self._resolved_default(field)) for field in narrower]
        self.companions = Companions(
            fields,
            lambda text, name: self.prompts.encode(text, field=name),
            max_model_len,
            vocab_size,
        )
        self._hooks = [WatchedHook(source, call) for source, call in hooks]
        self._constraints = ConstraintChecks(check_grammar)
        self._thinking = thinking
        self.has_priorities = has_priorities
        self._logprobs_mode = logprobs_mode
        self._max_logprobs = MAX_LOGPROBS if max_logprobs == -1 else max_logprobs

    @property
    def limits_thinking(self) -> bool:
        """Whether requests may have a budget of thinking tokens."""
        return self._thinking is not None and self._thinking.has_end

    @property
    def failing_hooks(self) -> list[WatchedHook]:
        """The `request_received` hooks that fail on every request."""
        return [hook for hook in self._hooks if hook.is_failing]

    def admit(
        self,
        prompt: Prompt | EncodedPrompt,
        params: SamplingParams | BeamSearchParams,
        *,
        adapter: AdapterRef | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        arrival_s: float | None = None,
        client: str = "",
    ) -> AdmittedPrompt:
        """Check a prompt with its parameters, and make its requests.

        Args:
            prompt: Text, token ids, or a dict with `prompt` or `prompt_token_ids` (with both, the
                ids are used and the text is kept for the output), `add_special_tokens`,
                `cache_salt`, `truncate_prompt_tokens` (the number to keep; -1: as many as the
                model takes), `truncation_side`; or a result of `encode`.
            params: Parameters of sampling or of a beam search, which is one request.
            adapter: LoRA adapter, resolved.
            priority: Priority, smaller first; must be 0 unless the scheduling policy reads it.
            timeout_s: Seconds from the arrival that the request may take; the engine's limit may
                be shorter.
            arrival_s: Time of its arrival, by `time.monotonic`; None: now.
            client: Identity of its sender for fair shares; empty: unknown.

        Raises:
            InvalidRequestError: A value is out of range, or a field does not exist.
            PromptTooLongError: The prompt leaves no tokens for a completion.
            GrammarError: The structured-output constraint is not supported.
            RequestError: A plugin refuses the request.
            RequestFailedError: A plugin failed.
        """
        self._check_priority(priority)
        check_timeout(timeout_s)
        beam_search = None
        if isinstance(params, BeamSearchParams):
            beam_search, params = params, params.sampling_params()
        if self._logprobs_mode != "raw_logprobs":
            self._check_raw(beam_search, params)
        params = self.resolve_logprobs(params)
        hides_logprobs = params.best_of is not None and params.logprobs is None
        if hides_logprobs:
            params = msgspec.structs.replace(params, logprobs=0)
        encoded = prompt if isinstance(prompt, EncodedPrompt) else self.encode(prompt)
        _check_prompt_logprobs(len(encoded.token_ids), params.prompt_logprobs)
        resolved = self._resolve_fields(params)
        companion = self.companions.make(
            resolved.extra_args,
            encoded.token_ids,
            lambda: self._resolve_fields(SamplingParams(temperature=0.0)),
        )
        longest = max(len(encoded.token_ids), len(companion.token_ids) if companion else 0)
        thinking_end = self._resolve_constraint(encoded, params)
        budget = self._resolve_budget(encoded, params)
        is_in_thinking = thinking_end is not None or budget is not None
        request_id = random_bytes.hex(16)
        first = EngineRequest(
            request_id=f"{request_id}-0",
            token_ids=encoded.token_ids,
            params=self.companions.without_prompt(resolved),
            max_tokens=self._resolve_max_tokens(longest, params),
            seed=random_bytes.bits(SEED_BITS) if params.seed is None else params.seed,
            stop_token_ids=self._resolve_stop_token_ids(params),
            thinking_end=thinking_end,
            thinking_budget=budget,
            call_openers=self._call_openers(encoded, params) if is_in_thinking else None,
            adapter=adapter,
            priority=priority,
            cache_salt=encoded.cache_salt,
            arrival_s=time.monotonic() if arrival_s is None else arrival_s,
            timeout_s=timeout_s,
            beam_search=beam_search,
            companion=companion,
            client=client,
        )
        requests = (first, *_sibling_requests(first, request_id))
        for request in requests:
            for hook in self._hooks:
                hook.received(request)
        return AdmittedPrompt(request_id, encoded, requests, hides_logprobs)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Tokenize a prompt and check its tokens.

        Raises:
            InvalidRequestError: It is empty, or not a prompt.
            PromptTooLongError: It leaves no tokens for a completion.
        """
        parts = prompt_parts(prompt)
        text, token_ids = self.prompts.encode_prompt(parts)
        if not token_ids:
            raise InvalidRequestError("the prompt is empty: it has no tokens", param="prompt")
        check_token_ids(token_ids, self._vocab_size, "prompt")
        shown = parts.get("shown_special_tokens") or ()
        check_token_ids([*shown], self._vocab_size, "shown_special_tokens")
        return EncodedPrompt(
            text,
            list(token_ids),
            parts.get("cache_salt"),
            frozenset(shown),
            opening=None if text is None else parts.get("opening"),
            has_tools=bool(parts.get("has_tools")),
        )

    def has_new_constraint(self, params: SamplingParams) -> bool:
        """Return whether the parameters have a constraint whose check may take long."""
        constraint = params.structured_outputs
        return constraint is not None and not self._constraints.is_known(constraint)

    def check_constraint(self, params: SamplingParams) -> None:
        """Check the constraint of parameters beforehand, in any thread; `admit` is quick then.

        Raises:
            GrammarError: The structured-output constraint is not supported.
            RequestFailedError: A backend failed.
        """
        constraint = params.structured_outputs
        if constraint is not None:
            with _naming_field_of(constraint):
                self._constraints.check(constraint)

    def resolve_logprobs(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with numbers of log probabilities that the model has, -1 resolved.

        Raises:
            InvalidRequestError: They are more than the engine reports, or a token id is unknown.
        """
        check_token_ids(params.logprob_token_ids, self._vocab_size, "logprob_token_ids")
        resolved = {}
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name)
            if count is None:
                continue
            wanted = self._vocab_size if count == -1 else count
            if wanted > self._max_logprobs:
                raise InvalidRequestError(
                    f"{name} is {count}, and this engine reports at most {self._max_logprobs} "
                    "tokens per position; ask for fewer, or start it with a larger --max-logprobs "
                    f"(-1: all {self._vocab_size})",
                    param=name,
                )
            if min(wanted, self._vocab_size) != count:
                resolved[name] = min(wanted, self._vocab_size)
        return msgspec.structs.replace(params, **resolved) if resolved else params

    def _check_raw(self, beam_search: BeamSearchParams | None, params: SamplingParams) -> None:
        """Refuse what compares the model's own log probabilities, which are not reported here."""
        mode, is_logits = self._logprobs_mode, self._logprobs_mode.endswith("_logits")
        name = "use_beam_search" if beam_search is not None else "best_of"
        if beam_search is not None or (params.best_of is not None and is_logits):
            raise InvalidRequestError(
                f"{name} compares log probabilities, and this engine reports {mode}; start it "
                "with --logprobs-mode raw_logprobs",
                param=name,
            )

    def _check_priority(self, priority: object) -> None:
        is_int = isinstance(priority, int) and not isinstance(priority, bool)
        if not is_int or not MIN_PRIORITY <= priority <= MAX_PRIORITY:  # type: ignore[operator]
            raise InvalidRequestError(
                f"priority must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}, got "
                f"{priority!r:.100}",
                param="priority",
            )
        if priority != 0 and not self.has_priorities:
            raise InvalidRequestError(
                f"priority is {priority}, but this engine serves first come, first served; start "
                "it with --scheduling-policy priority, or send 0",
                param="priority",
            )

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
        compile_stop_regexes(params.stop_regex)  # refuses those that cannot be used
        check_token_ids(params.stop_token_ids, self._vocab_size, "stop_token_ids")
        is_endless = params.ignore_eos and params.structured_outputs is None  # a grammar ends
        own = () if is_endless else self._tokenizer.eos_token_ids
        found = tuple(dict.fromkeys((*own, *params.stop_token_ids)))
        allowed = params.allowed_token_ids
        if params.min_tokens and allowed and set(allowed) <= set(found):
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, but every token of allowed_token_ids ends the "
                "completion; allow another one",
                param="allowed_token_ids",
            )
        return found

    def _resolve_constraint(
        self, prompt: EncodedPrompt, params: SamplingParams
    ) -> MarkerTokens | None:
        """Check the constraint; return the marker after which it applies, None for the start."""
        constraint = params.structured_outputs
        if constraint is None:
            return None
        with _naming_field_of(constraint):
            self._constraints.check(constraint)
            calls = constraint.calls
            if self._thinking is None or (calls is not None and calls.covers_reasoning):
                return None
            return self._thinking.end(prompt.opening, prompt.token_ids)

    def _resolve_budget(
        self, prompt: EncodedPrompt, params: SamplingParams
    ) -> ThinkingBudget | None:
        max_tokens = params.thinking_token_budget
        if max_tokens is None:
            return None
        if self._thinking is None:
            raise InvalidRequestError(
                "thinking_token_budget needs a reasoning parser, which tells where the thinking "
                "ends; start with --reasoning-parser NAME, or leave it out",
                param="thinking_token_budget",
            )
        calls = params.calls
        budget = self._thinking.budget(
            max_tokens,
            prompt.opening,
            prompt.token_ids,
            has_constraint=params.structured_outputs is not None and not (calls and calls.triggers),
        )
        missing = {*budget.end.token_ids}.difference(params.allowed_token_ids)
        if params.allowed_token_ids and missing:
            tokens = ", ".join(map(str, sorted(missing)))
            raise InvalidRequestError(
                f"thinking_token_budget needs the tokens that end the thinking; add {tokens} to "
                "allowed_token_ids",
                param="allowed_token_ids",
            )
        return budget

    def _call_openers(self, prompt: EncodedPrompt, params: SamplingParams) -> MarkerTokens | None:
        """Return the markers by which a call in the reasoning begins, where one counts."""
        calls = params.calls
        follow = calls is not None and calls.follow_reasoning
        if self._thinking is None or follow or not prompt.has_tools:
            return None
        return self._thinking.call_openers

    def _resolve_fields(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with every field that samplers add; all are checked."""
        self._check_extra_args(params.extra_args)
        self.logits_processors.check(params)
        for name, default in self._unread:
            if getattr(params, name) != default:
                hint = self.offered_fields.get(name, "start with --samplers default")
                raise InvalidRequestError(
                    f"{name} is read by none of the samplers in use; {hint}, or leave it out",
                    param=name,
                )
        extra_args = dict(self._defaults)
        for field, default in self._narrower:
            value = getattr(params, field.name)
            if default is None or value != default.given:
                value = self._resolved(field, value)
            else:
                value = default.resolved
            if isinstance(field.type, FieldType):
                extra_args[field.name] = value
        for name, value in params.extra_args.items():
            extra_args[name] = self._resolved(self.extra_fields[name], value)
        return params.with_extra_args(extra_args) if extra_args else params

    def _resolved_default(self, field: RequestField) -> "_Default | None":
        """Return the default of a parameter; None if a sampler refuses it, as it is then said."""
        given = getattr(SamplingParams(), field.name)
        try:
            return _Default(given, self._resolved(field, given))
        except InvalidRequestError:
            return None

    def _resolved(self, field: RequestField, value: Any) -> Any:
        return field.resolve(field.check(value), self._vocabulary)

    def _check_extra_args(self, extra_args: Mapping[str, Any]) -> None:
        for name in extra_args:
            if name not in self.extra_fields:
                raise InvalidRequestError(
                    f"there is no request field {shown(name)}{self._hint_for(name)}",
                    param=str(name)[:MAX_SHOWN],
                )

    def _hint_for(self, name: object) -> str:
        """Return how an unknown field of `extra_args` can be served."""
        if name in SamplingParams.__struct_fields__:
            return f" of samplers; it is a parameter: SamplingParams({name}=...)"
        if name in self.offered_fields:
            return f" of the samplers in use; {self.offered_fields[str(name)]}"
        known = (*self.extra_fields, *self.offered_fields)
        near = get_close_matches(str(name)[:MAX_SHOWN], known, 1)
        listed = ", ".join(self.extra_fields) or "none"
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{hint} (the samplers in use add: {listed})"


@contextmanager
def _naming_field_of(constraint: StructuredOutputsParams) -> Iterator[None]:
    """Name the field of the constraint in a GrammarError that names none."""
    try:
        yield
    except GrammarError as error:
        if error.param is None:
            error.param = "structured_outputs" if constraint.calls is None else "tools"
        raise


def _narrows(field: RequestField) -> bool:
    """Return whether a sampler's limits refuse values that `SamplingParams` accepts."""
    low, high = LIMITS.get(field.name, (-math.inf, math.inf))
    has_type = field.type is type(getattr(SamplingParams(), field.name))
    return not has_type or field.minimum > low or field.maximum < high


def _sibling_requests(first: EngineRequest, request_id: str) -> Iterator[EngineRequest]:
    """Yield the requests for the other completions; prompt logprobs come from the first one."""
    if first.beam_search is not None:
        _check_candidates(first.beam_search, len(first.stop_token_ids))
        return
    params = first.params
    if params.prompt_logprobs is not None:
        params = msgspec.structs.replace(params, prompt_logprobs=None)
    for child in range(1, params.num_generated):
        yield msgspec.structs.replace(
            first, request_id=f"{request_id}-{child}", child=child, params=params
        )


def _check_prompt_logprobs(num_tokens: int, num_top: int | None) -> None:
    num = 0 if num_top is None else num_tokens * (num_top + 1)
    if num > MAX_PROMPT_CANDIDATES:
        raise InvalidRequestError(
            f"prompt_logprobs asks for {num_top} candidates at each of {num_tokens} tokens; a "
            f"prompt may have {MAX_PROMPT_CANDIDATES} in all. Ask for fewer, or send it in parts",
            param="prompt_logprobs",
        )


def _check_candidates(params: BeamSearchParams, num_stop_tokens: int) -> None:
    num_candidates = params.num_candidates(num_stop_tokens)
    if num_candidates > MAX_CANDIDATES:
        raise InvalidRequestError(
            f"a beam search of beam_width {params.beam_width} with {num_stop_tokens} stop tokens "
            f"selects from {num_candidates} candidates a step, and at most {MAX_CANDIDATES} are "
            "allowed; ask for fewer of either",
            param="beam_width",
        )
