"""Sampling parameters and structured-output constraints of a request. The names follow vLLM."""

from typing import Any

import msgspec

from quire.errors import InvalidRequestError

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1

LIMITS: dict[str, tuple[float, float]] = {  # of the values that samplers read
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
}


class SchemaPiece(msgspec.Struct, frozen=True):
    """A piece of a tool call that is JSON: any value that satisfies the schema."""

    schema: dict[str, Any] | bool


class CallShape(msgspec.Struct, frozen=True):
    """The format of a call of one tool, from its first character to its last.

    Attributes:
        tool: Name of the tool, for error messages.
        pieces: Literal texts and JSON schemas, in order.
    """

    tool: str
    pieces: tuple[str | SchemaPiece, ...]


class CallGrammar(msgspec.Struct, frozen=True):
    """A grammar for completions that consist of tool calls, for a structured-output backend.

    Attributes:
        shapes: Formats of which each call follows one.
        separator: Text between two calls; None if the completion is exactly one call.
    """

    shapes: tuple[CallShape, ...]
    separator: str | None = None


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A constraint that the completion must satisfy: exactly one of the fields but `backend`.

    Attributes:
        json: JSON schema, as a dict or as JSON text.
        regex: Regular expression that the whole completion matches.
        choice: Strings of which the completion is one.
        json_object: True if the completion is any JSON object.
        grammar: Context-free grammar, for backends that support them.
        calls: Grammar of tool calls and nothing else, as a tool parser's `call_grammar` returns it.
        backend: Name of the structured-output backend for this request; None: the engine's default.
    """

    json: dict[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    json_object: bool = False
    grammar: str | None = None
    calls: CallGrammar | None = None
    backend: str | None = None

    @property
    def constraint(self) -> str:
        """The name of the constraint that is set."""
        return self._given()[0]

    def _given(self) -> list[str]:
        names = ("json", "regex", "choice", "grammar", "calls")
        given = [name for name in names if getattr(self, name) is not None]
        return given + (["json_object"] if self.json_object else [])

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            raise InvalidRequestError(
                "structured_outputs takes exactly one of json, regex, choice, json_object, "
                f"grammar and calls; got {', '.join(given) or 'none'}",
                param="structured_outputs",
            )


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of a request.

    Attributes:
        n: Number of completions per prompt; each is a request of its own with its own randomness.
        temperature: Divisor of the logits; 0 takes the most likely token.
        top_p: Cumulative probability of the smallest set of tokens to sample from; 1 is off.
        top_k: Number of most likely tokens to sample from; 0 or -1 is off.
        min_p: Smallest probability of a token relative to the most likely one; 0 is off.
        seed: Seed: the same seed and prompt give the same completion. None takes a random one.
        max_tokens: Largest number of tokens to generate; None: up to the model's length.
        min_tokens: Number of tokens before which no end-of-text and no stop ends the completion.
        stop: Strings that end the completion; they are not part of it.
        stop_token_ids: Token ids that end the completion.
        include_stop_str_in_output: True to keep the stop string in the text.
        ignore_eos: True to continue after the end-of-text token.
        logprobs: Number of other tokens per position whose log probabilities are returned, in
            addition to the chosen token's. They are the model's own: raw, before temperature,
            filters, masks and every other logits processor.
        prompt_logprobs: The same for the tokens of the prompt; disables prefix cache hits.
        skip_special_tokens: True to leave special tokens out of the text.
        structured_outputs: Constraint that the completion must satisfy.
        extra_args: Fields that sampler plugins declare, by name.

    Raises:
        InvalidRequestError: A value is out of range; `param` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    extra_args: dict[str, Any] = {}

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        msgspec.structs.force_setattr(self, "stop", stop)
        msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids))
        _check_integer("n", self.n, 1, MAX_N)
        _check_number("temperature", self.temperature)
        _check_number("top_p", self.top_p, above=True)
        _check_integer("top_k", self.top_k, *LIMITS["top_k"])
        _check_number("min_p", self.min_p)
        for name in ("temperature", "top_p", "min_p"):
            msgspec.structs.force_setattr(self, name, float(getattr(self, name)))
        if self.seed is not None:
            _check_integer("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check_integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})",
                param="min_tokens",
            )
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if len(stop) > MAX_STOP_STRINGS or not all(isinstance(s, str) and s for s in stop):
            raise InvalidRequestError(
                f"stop takes at most {MAX_STOP_STRINGS} strings, none of them empty", param="stop"
            )

    @property
    def sampler_fields(self) -> dict[str, Any]:
        """Values that samplers can read, by name: numbers of every request, and `extra_args`."""
        own = {name: getattr(self, name) for name in _SAMPLER_FIELDS}
        return own | self.extra_args


_SAMPLER_FIELDS = (
    "n", "temperature", "top_p", "top_k", "min_p", "min_tokens", "include_stop_str_in_output",
    "ignore_eos", "skip_special_tokens",
)  # fmt: skip


def _check_integer(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(
            f"{name} must be a whole number from {low} to {high}, got {value!r}", param=name
        )


def _check_number(name: str, value: object, above: bool = False) -> None:
    """Check that a number is within its limits; with `above` it must be greater than the lower."""
    low, high = LIMITS[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        raise InvalidRequestError(
            f"{name} must be a number from {low:g} to {high:g}, got {value!r}", param=name
        )
    if above and value == low:
        raise InvalidRequestError(f"{name} must be greater than {low:g}, got {value!r}", param=name)
