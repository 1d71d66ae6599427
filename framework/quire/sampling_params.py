"""Sampling parameters and structured-output constraints of a request. The names follow vLLM."""

import reprlib
from collections.abc import Callable, Sequence, Set
from copy import copy
from functools import partial
from types import UnionType
from typing import Any, Literal

import msgspec

from quire.call_grammar import CallGrammar
from quire.errors import InvalidRequestError
from quire.output_types import (
    constraint_of_type,
    plain_choice,
    plain_grammar,
    plain_regex,
    plain_schema,
    plain_structural_tag,
)

MAX_N = 128
LENGTH_PENALTIES = (-10.0, 10.0)  # of beam searches
MAX_CANDIDATES = 4096  # tokens that a step of a beam search selects from
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024  # of one stop string
MAX_STOP_REGEXES = 4
MAX_STOP_REGEX_CHARACTERS = 512
MAX_STOP_TOKEN_IDS = 256
MAX_PATTERN_SIZE = 256
MAX_PATTERN_COUNT = 64
MAX_LOGPROBS = 2**31 - 1  # the engine's setting `max_logprobs` is the smaller limit
MAX_LOGPROB_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_DIGITS = 10  # of a token id in JSON, whose names are texts
MAX_BAD_WORDS = 128
MAX_ALLOWED_TOKEN_IDS = 2**20  # the vocabulary is a smaller limit
MAX_LOGITS_PROCESSORS = 32
MAX_LOGITS_PROCESSOR_CHARACTERS = 128  # of one name
MAX_SEED = 2**63 - 1

LIMITS: dict[str, tuple[float, float]] = {  # of the values that samplers read
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-3, 1e3),
    "logit_bias": (-100.0, 100.0),
}


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A constraint that the completion must satisfy: exactly one of the fields but `backend`.

    Attributes:
        json: JSON schema, as a dict or as JSON text; a type is accepted too, such as a Pydantic
            model, a dataclass or a JsonSchema of outlines.
        regex: Regular expression that the whole completion matches, or a term of outlines.
        choice: Strings of which the completion is one; an Enum, a Literal or a Choice of outlines
            is accepted too.
        json_object: True if the completion is any JSON object.
        grammar: Context-free grammar, for backends that support them; or a CFG of outlines.
        structural_tag: Structural tag, for backends that support them: JSON between tags in
            otherwise free text.
        calls: Grammar of tool calls, as a tool parser's `call_grammar` returns it.
        backend: Name of the structured-output backend for this request; None or "auto": the first
            of the engine's that honours the constraint.
    """

    json: dict[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    json_object: bool = False
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    calls: CallGrammar | None = None
    backend: str | None = None

    @property
    def names_backend(self) -> bool:
        """Whether one backend is asked for."""
        return self.backend not in (None, "auto")

    @property
    def constraint(self) -> str:
        """The name of the constraint that is set, as a backend's capabilities have it."""
        in_text = self.calls is not None and bool(self.calls.triggers)
        return "calls_in_text" if in_text else self._given()[0]

    def _given(self) -> list[str]:
        names = (*_PLAIN, "calls")
        given = [name for name in names if getattr(self, name) is not None]
        return given + (["json_object"] if self.json_object else [])

    def __post_init__(self) -> None:
        for name, plain in _PLAIN.items():
            if (value := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, plain(value))
        where = "structured_outputs."
        _check_type(f"{where}json_object", self.json_object, bool, "true or false")
        _check_type(f"{where}calls", self.calls, CallGrammar | None, "a CallGrammar")
        _check_type(f"{where}backend", self.backend, str | None, "the name of a backend")
        given = self._given()
        if len(given) != 1:
            raise InvalidRequestError(
                "structured_outputs takes exactly one of json, regex, choice, json_object, "
                f"grammar, structural_tag and calls; got {', '.join(given) or 'none'}",
                param="structured_outputs",
            )


_PLAIN: dict[str, Callable[[object], object]] = {  # constraint -> conversion to a plain value
    "json": plain_schema,
    "regex": plain_regex,
    "choice": plain_choice,
    "grammar": plain_grammar,
    "structural_tag": plain_structural_tag,
}


class RepetitionDetectionParams(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern of tokens whose repetition ends a completion.

    Attributes:
        max_pattern_size: Largest number of tokens of the pattern; 0 is off.
        min_pattern_size: Smallest number of tokens of the pattern; 0 is 1.
        min_count: Number of times in a row that the pattern occurs.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        name = "repetition_detection"
        _check_integer(f"{name}.max_pattern_size", self.max_pattern_size, 0, MAX_PATTERN_SIZE)
        _check_integer(f"{name}.min_pattern_size", self.min_pattern_size, 0, self.max_pattern_size)
        if self.max_pattern_size:
            _check_integer(f"{name}.min_count", self.min_count, 2, MAX_PATTERN_COUNT)
            msgspec.structs.force_setattr(self, "min_pattern_size", self.min_pattern_size or 1)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of a request.

    Attributes:
        n: Number of completions per prompt; each is a request of its own with its own randomness.
        best_of: Number of completions to generate, of which the `n` with the largest cumulative log
            probability are returned, the best first; None: `n`.
        temperature: Divisor of the logits; 0 takes the most likely token.
        top_p: Cumulative probability of the smallest set of tokens to sample from; 1 is off.
        top_k: Number of most likely tokens to sample from; 0 or -1 is off.
        min_p: Smallest probability of a token relative to the most likely one; 0 is off.
        presence_penalty: Number subtracted from the logits of tokens that the completion has.
        frequency_penalty: Number subtracted from a token's logit for each time that the completion
            has it.
        repetition_penalty: Divisor of the positive logits of tokens in prompt or completion, and
            factor of the negative ones; 1 is off.
        logit_bias: Token id -> number that is added to its logit.
        allowed_token_ids: The only tokens to sample; None or empty: all.
        bad_words: Texts that are not generated, at the beginning of a text or after a blank.
        seed: Seed: the same seed and prompt give the same completion. None takes a random one.
        max_tokens: Largest number of tokens to generate; None: up to the model's length.
        min_tokens: Number of tokens before which no end-of-text and no stop ends the completion,
            unless a constraint does.
        stop: Strings that end the completion; they are not part of it.
        stop_regex: Regular expressions of which a match ends the completion; it is not part of it.
        stop_token_ids: Token ids that end the completion.
        include_stop_str_in_output: True to keep the stop string or the match in the text.
        ignore_eos: True to continue after the end-of-text token, unless the completion follows a
            constraint, which ends with it.
        logprobs: Number of most likely tokens per position whose log probabilities are returned, in
            addition to the chosen token's; -1: all. By default they are the model's own: raw,
            before temperature, filters, masks and every other logits processor.
        prompt_logprobs: The same for the tokens of the prompt; disables prefix cache hits.
        logprob_token_ids: Tokens whose log probabilities are returned instead of those of the most
            likely ones.
        flat_logprobs: True to get log probabilities as compact mappings instead of dicts, which
            take a tenth of the memory.
        skip_special_tokens: True to leave special tokens out of the text.
        structured_outputs: Constraint that the completion must satisfy; a dict of its fields or
            an output type, such as a Pydantic model, is accepted too.
        thinking_token_budget: Number of tokens after which the model's thinking is ended; None
            or -1: no limit.
        repetition_detection: Pattern whose repetition ends the completion with the finish reason
            "repetition"; a dict is accepted too.
        logits_processors: Names of logits processors of plugins that run only for requests that
            name them; the order is that of the pipeline.
        extra_args: Fields that sampler plugins declare, by name.

    Raises:
        InvalidRequestError: A value is out of range; `param` names the field.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: Sequence[int] = ()
    bad_words: tuple[str, ...] = ()
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    flat_logprobs: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    logits_processors: tuple[str, ...] = ()
    extra_args: dict[str, Any] = {}

    def __post_init__(self) -> None:
        given = {name for name, default in _DEFAULTS if getattr(self, name) is not default}
        if not given.isdisjoint(_MAX_ITEMS):
            self._check_lists(given)
        if self.logit_bias != {}:
            self._check_logit_bias()
        if not given.isdisjoint(_NUMBERS):
            self._check_numbers(given)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})",
                param="min_tokens",
            )
        if not given.isdisjoint(_OTHERS):
            self._check_logprobs()
            self._check_thinking()
            self._check_repetition()
            self._check_constraint()
        for name, (kind, words) in _TYPES.items():
            if type(value := getattr(self, name)) is not kind:
                _check_type(name, value, kind, words)

    def with_extra_args(self, extra_args: dict[str, Any]) -> "SamplingParams":
        """Return a copy with other `extra_args`; the other fields are not checked again."""
        made = copy(self)
        msgspec.structs.force_setattr(made, "extra_args", extra_args)
        return made

    def _check_lists(self, given: Set[str]) -> None:
        """Check the lists that were given, and make them tuples."""
        for name in given & {"stop", "stop_regex"}:
            if isinstance(value := getattr(self, name), str):
                msgspec.structs.force_setattr(self, name, (value,))
        for name, max_items in _MAX_ITEMS.items():
            if name in given:
                self._freeze_list(name, max_items)
        self._check_stops()
        self._check_logits_processors()

    def _check_numbers(self, given: Set[str]) -> None:
        """Check the numbers that were given, and make those floats that are to be."""
        for name, check in _NUMBERS.items():
            if name in given:
                check(name, getattr(self, name))
        self._check_best_of()
        for name in _FLOATS:
            if type(value := getattr(self, name)) is not float:
                msgspec.structs.force_setattr(self, name, float(value))

    def _freeze_list(self, name: str, max_items: int) -> None:
        """Make a list a tuple, after its length is checked; None is empty."""
        value = getattr(self, name)
        if value is not None and not isinstance(value, list | tuple):
            raise InvalidRequestError(
                f"{name} must be a list, got a {type(value).__name__}", param=name
            )
        if value is not None and len(value) > max_items:
            raise InvalidRequestError(
                f"{name} has {len(value)} items; it takes at most {max_items}", param=name
            )
        msgspec.structs.force_setattr(self, name, tuple(value or ()))

    def _check_best_of(self) -> None:
        """Compare `best_of` with `n`; one that is `n` is None."""
        if self.best_of is None:
            return
        if self.best_of < self.n:
            raise InvalidRequestError(
                f"best_of ({self.best_of}) is smaller than n ({self.n}): no more completions can "
                "be returned than are generated",
                param="best_of",
            )
        if self.best_of == self.n:
            msgspec.structs.force_setattr(self, "best_of", None)

    @property
    def num_generated(self) -> int:
        """Number of completions that are generated for a prompt."""
        return self.best_of or self.n

    @property
    def calls(self) -> CallGrammar | None:
        """Grammar of tool calls that a completion follows; None: it follows none."""
        constraint = self.structured_outputs
        return None if constraint is None else constraint.calls

    def _check_stops(self) -> None:
        limits = {"stop": MAX_STOP_CHARACTERS, "stop_regex": MAX_STOP_REGEX_CHARACTERS}
        for name, max_characters in limits.items():
            for text in getattr(self, name):
                if not isinstance(text, str) or not 1 <= len(text) <= max_characters:
                    raise InvalidRequestError(
                        f"{name} takes strings of 1 to {max_characters} characters, got "
                        f"{_shown(text)}",
                        param=name,
                    )
                if _has_half_of_a_pair(text):
                    raise InvalidRequestError(
                        f"{name} holds half of a surrogate pair, which no text has: {_shown(text)}",
                        param=name,
                    )

    def _check_logits_processors(self) -> None:
        """Check that they are names: a client sends no code."""
        for name in self.logits_processors:
            is_name = isinstance(name, str) and len(name) <= MAX_LOGITS_PROCESSOR_CHARACTERS
            if not is_name or _has_half_of_a_pair(name):
                raise InvalidRequestError(
                    "logits_processors takes names of logits processors that plugins offer, of up "
                    f"to {MAX_LOGITS_PROCESSOR_CHARACTERS} characters, got {_shown(name)}; code "
                    "is loaded at start-up, from a plugin whose step declares is_opt_in",
                    param="logits_processors",
                )
        if self.logits_processors:
            names = tuple(dict.fromkeys(self.logits_processors))
            msgspec.structs.force_setattr(self, "logits_processors", names)

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(self, name)) is not None:
                _check_integer(name, count, -1, MAX_LOGPROBS)
        if not self.logprob_token_ids:
            return
        if self.logprobs:
            raise InvalidRequestError(
                f"logprobs asks for {self.logprobs} most likely tokens and logprob_token_ids for "
                f"{len(self.logprob_token_ids)} tokens by id; leave one of them out",
                param="logprob_token_ids",
            )
        msgspec.structs.force_setattr(self, "logprobs", 0)

    def _check_thinking(self) -> None:
        if self.thinking_token_budget is not None:
            _check_integer("thinking_token_budget", self.thinking_token_budget, -1, 2**31 - 1)
            if self.thinking_token_budget == -1:
                msgspec.structs.force_setattr(self, "thinking_token_budget", None)

    def _check_repetition(self) -> None:
        """Make a dict a struct; one that is off is None."""
        given: object = self.repetition_detection
        if isinstance(given, dict):
            given = _repetition_of(given)
        if given is not None and not isinstance(given, RepetitionDetectionParams):
            raise InvalidRequestError(
                f"repetition_detection must be RepetitionDetectionParams or a dict, got a "
                f"{type(given).__name__}",
                param="repetition_detection",
            )
        is_on = given is not None and given.max_pattern_size > 0
        msgspec.structs.force_setattr(self, "repetition_detection", given if is_on else None)

    def _check_constraint(self) -> None:
        """Make a dict of fields or an output type a struct."""
        given: object = self.structured_outputs
        if given is None or isinstance(given, StructuredOutputsParams):
            return
        fields = given if isinstance(given, dict) else constraint_of_type(given)
        known = StructuredOutputsParams.__struct_fields__
        for name in fields:
            if name not in known:
                raise InvalidRequestError(
                    f"structured_outputs has no field {_shown(name)} (known: {', '.join(known)}); "
                    "a JSON schema is given as json",
                    param="structured_outputs",
                )
        constraint = StructuredOutputsParams(**fields)
        msgspec.structs.force_setattr(self, "structured_outputs", constraint)

    def _check_logit_bias(self) -> None:
        bias = {} if self.logit_bias is None else self.logit_bias
        if not isinstance(bias, dict) or len(bias) > MAX_LOGIT_BIASES:
            raise InvalidRequestError(
                f"logit_bias must be a map of at most {MAX_LOGIT_BIASES} token ids to numbers",
                param="logit_bias",
            )
        whole: dict[Any, float] = {_token_id(key): number for key, number in bias.items()}
        if len(whole) != len(bias):
            raise InvalidRequestError("logit_bias has a token id twice", param="logit_bias")
        msgspec.structs.force_setattr(self, "logit_bias", whole)

    @property
    def sampler_fields(self) -> dict[str, Any]:
        """Values that samplers can read, by name: numbers of every request, and `extra_args`."""
        own = {name: getattr(self, name) for name in _SAMPLER_FIELDS}
        return own | self.extra_args


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of a beam search: the completions with the largest log probabilities.

    The beams, their scores and the end of the search are those of transformers.

    Attributes:
        beam_width: Number of beams.
        n: Number of completions that are returned, the best first; None: `beam_width`.
        max_tokens: Largest number of tokens to generate; None: up to the model's length.
        min_tokens: Number of tokens before which no stop token ends a beam.
        ignore_eos: True to continue after the end-of-text token.
        stop_token_ids: Token ids that end a beam.
        length_penalty: Exponent of the length by which the sum of a completion's log probabilities
            is divided: above 0 long completions win, below 0 short ones.
        early_stopping: When to stop once `beam_width` completions are found. True: at once. False:
            when no beam has a better score at its length. "never": when none can reach one.
        temperature: Must be 0; there for compatibility with vLLM. The scores are the model's own
            log probabilities.
        include_stop_str_in_output: True to keep the stop token in the text.
        logprobs: Number of other tokens per position whose log probabilities are returned.
        flat_logprobs: True for compact mappings of log probabilities, as in `SamplingParams`.
        skip_special_tokens: True to leave special tokens out of the text.

    Raises:
        InvalidRequestError: A value is out of range; `param` names the field.
    """

    beam_width: int
    n: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    temperature: float = 0.0
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    flat_logprobs: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_integer("beam_width", self.beam_width, 1, MAX_N)
        if self.n is not None:
            _check_integer("n", self.n, 1, self.beam_width)
        _check_number("length_penalty", self.length_penalty, limits=LENGTH_PENALTIES)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequestError(
                f'early_stopping must be true, false or "never", got {_shown(self.early_stopping)}',
                param="early_stopping",
            )
        if self.temperature != 0 or isinstance(self.temperature, bool):
            raise InvalidRequestError(
                "temperature must be 0 in a beam search, which compares the model's own log "
                f"probabilities; got {_shown(self.temperature)}",
                param="temperature",
            )
        self.sampling_params()  # checks the other fields

    def sampling_params(self) -> SamplingParams:
        """Return the parameters that every request has."""
        names = SamplingParams.__struct_fields__
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name in names}
        return SamplingParams(**given | {"n": self.num_generated})

    @property
    def num_generated(self) -> int:
        """Number of completions that are returned for a prompt."""
        return self.n or self.beam_width

    def num_candidates(self, num_stop_tokens: int) -> int:
        """Return how many tokens a step selects from: `beam_width` are left if the others stop."""
        return max(2, 1 + num_stop_tokens) * self.beam_width


_FLOATS = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_TYPES: dict[str, tuple[type | UnionType, str]] = {
    "include_stop_str_in_output": (bool, "true or false"),
    "ignore_eos": (bool, "true or false"),
    "flat_logprobs": (bool, "true or false"),
    "skip_special_tokens": (bool, "true or false"),
    "extra_args": (dict, "a dict"),
}
_MAX_ITEMS = {
    "stop": MAX_STOP_STRINGS,
    "stop_regex": MAX_STOP_REGEXES,
    "stop_token_ids": MAX_STOP_TOKEN_IDS,
    "allowed_token_ids": MAX_ALLOWED_TOKEN_IDS,
    "bad_words": MAX_BAD_WORDS,
    "logprob_token_ids": MAX_LOGPROB_TOKEN_IDS,
    "logits_processors": MAX_LOGITS_PROCESSORS,
}
_SAMPLER_FIELDS = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "include_stop_str_in_output", "ignore_eos",
    "skip_special_tokens", "logits_processors",
)  # fmt: skip


def _has_half_of_a_pair(text: str) -> bool:
    """Return whether a string has half of a surrogate pair, which no text has."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _shown(value: object) -> str:
    """Return the beginning of a value, for a message; a large one is never written in full."""
    try:
        return f"{reprlib.repr(value):.100}"
    except ValueError:  # Python writes no number of more than 4,300 digits
        return f"a {type(value).__name__} with too many digits"


def _token_id(key: object) -> object:
    """Return a key of `logit_bias` as a token id if it is a text of digits, as in JSON.

    The engine may be another process, and its messages have numbers as keys.
    """
    is_text = isinstance(key, str) and len(key) <= MAX_DIGITS and key.isascii()
    return int(key) if is_text and key.isdecimal() else key  # type: ignore[attr-defined,call-overload]


def _check_type(name: str, value: object, kind: type | UnionType, words: str) -> None:
    if not isinstance(value, kind):
        raise InvalidRequestError(
            f"{name} must be {words}, got a {type(value).__name__}", param=name
        )


def _repetition_of(fields: dict[str, Any]) -> RepetitionDetectionParams:
    known = RepetitionDetectionParams.__struct_fields__
    for name in fields:
        if name not in known:
            raise InvalidRequestError(
                f"repetition_detection has no field {_shown(name)}; it has {', '.join(known)}",
                param="repetition_detection",
            )
    return RepetitionDetectionParams(**fields)


def _check_integer(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(
            f"{name} must be a whole number from {low} to {high}, got {_shown(value)}", param=name
        )


def _check_number(
    name: str,
    value: object,
    above: bool = False,
    limits: tuple[float, float] | None = None,
) -> None:
    """Check that a number is within its limits; with `above` it must be greater than the lower."""
    low, high = LIMITS[name] if limits is None else limits
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        raise InvalidRequestError(
            f"{name} must be a number from {low:g} to {high:g}, got {_shown(value)}", param=name
        )
    if above and value == low:
        raise InvalidRequestError(
            f"{name} must be greater than {low:g}, got {_shown(value)}", param=name
        )


def _integer(low: float, high: float) -> Callable[[str, object], None]:
    """Return the check of a whole number."""
    return lambda name, value: _check_integer(name, value, low, high)


def _optional(check: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """Return the check of a number that may be None."""
    return lambda name, value: None if value is None else check(name, value)


_NUMBERS: dict[str, Callable[[str, object], None]] = {  # checked in this order
    "n": _integer(1, MAX_N),
    "best_of": _optional(_integer(1, MAX_N)),
    "temperature": _check_number,
    "top_p": partial(_check_number, above=True),
    "top_k": _integer(*LIMITS["top_k"]),
    "min_p": _check_number,
    "presence_penalty": _check_number,
    "frequency_penalty": _check_number,
    "repetition_penalty": _check_number,
    "seed": _optional(_integer(-MAX_SEED - 1, MAX_SEED)),
    "max_tokens": _optional(_integer(1, 2**31 - 1)),
    "min_tokens": _integer(0, 2**31 - 1),
}
_OTHERS = frozenset(
    {
        "logprobs", "prompt_logprobs", "logprob_token_ids", "thinking_token_budget",
        "repetition_detection", "structured_outputs",
    }
)  # fmt: skip
_DEFAULTS = [(field.name, field.default) for field in msgspec.structs.fields(SamplingParams)]
