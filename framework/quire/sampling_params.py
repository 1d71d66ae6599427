"""What a caller asks of one generation. The names are those that users of vLLM know."""

from typing import Any

import msgspec

from quire.errors import InvalidRequestError

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1


class SchemaPiece(msgspec.Struct, frozen=True):
    """A piece of a call that is JSON: whatever satisfies the schema."""

    schema: dict[str, Any] | bool


class CallShape(msgspec.Struct, frozen=True):
    """How a call of one tool is written, from its first character to its last.

    Attributes:
        tool: The tool's name, for error messages.
        pieces: Texts as they stand, and JSON by its schema, one behind the other.
    """

    tool: str
    pieces: tuple[str | SchemaPiece, ...]


class CallGrammar(msgspec.Struct, frozen=True):
    """A whole answer that is one call or several. The structured-output backend carries it out.

    Attributes:
        shapes: Each call has one of these.
        separator: What stands between two calls; None if the answer is exactly one.
    """

    shapes: tuple[CallShape, ...]
    separator: str | None = None


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A form that the answer must follow; exactly one of those below.

    Attributes:
        json: A JSON schema, as a dict or as JSON text.
        regex: A regular expression that the whole answer matches.
        choice: The answer is one of these strings.
        json_object: Any JSON object.
        grammar: A context-free grammar, for backends that have them.
        calls: Tool calls and nothing else; what a tool parser's `call_grammar` returns.
        backend: Which structured-output backend serves this request; None is the engine's own.
    """

    json: dict[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    json_object: bool = False
    grammar: str | None = None
    calls: CallGrammar | None = None
    backend: str | None = None

    @property
    def form(self) -> str:
        """The name of the one that is asked for."""
        return self._given()[0]

    def _given(self) -> list[str]:
        forms = ("json", "regex", "choice", "grammar", "calls")
        given = [name for name in forms if getattr(self, name) is not None]
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
    """How to generate, and when to stop.

    Attributes:
        n: Answers a prompt; each is a request of its own with its own randomness.
        temperature: 0 takes the most likely token.
        top_p: Smallest set of tokens whose probabilities add up to this; 1 is off.
        top_k: The k most likely tokens; 0 or -1 is off.
        min_p: Tokens at least this likely in relation to the likeliest; 0 is off.
        seed: Same seed, same prompt: same answer. None draws a fresh one.
        max_tokens: Tokens to generate at most; None goes on to the model's length.
        min_tokens: No end-of-text and no stop before so many tokens.
        stop: Strings that end the answer; they are not part of it.
        stop_token_ids: Token ids that end the answer.
        include_stop_str_in_output: Keep the stop string.
        ignore_eos: Go on after the end-of-text token.
        logprobs: Log probabilities of the chosen token and this many others a position. They are
            the model's own: raw, before temperature, filters, masks and every other sampling step.
        prompt_logprobs: The same for the tokens of the prompt. The prefix cache is not read then.
        skip_special_tokens: Leave special tokens out of the text.
        structured_outputs: A form that the answer must follow.
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
        _check_number("temperature", self.temperature, 0.0, 100.0)
        _check_number("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_integer("top_k", self.top_k, -1, 2**31 - 1)
        _check_number("min_p", self.min_p, 0.0, 1.0)
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


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(
            f"{name} must be a whole number from {low} to {high}, got {value!r}", param=name
        )


def _check_number(name: str, value: object, low: float, high: float, above: bool = False) -> None:
    """Check a number from `low` (or, with `above`, from just over it) to `high`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        raise InvalidRequestError(
            f"{name} must be a number from {low:g} to {high:g}, got {value!r}", param=name
        )
    if above and value == low:
        raise InvalidRequestError(f"{name} must be greater than {low:g}, got {value!r}", param=name)
