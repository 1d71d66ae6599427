"""The interface of an HTTP route: what it reads of a request, and what it returns.

A route never sees HTTP. The host checks keys, limits and the body, converts errors, writes the
response, and counts what was used; the route gets a `RouteRequest` and returns plain data.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import msgspec

from quire.errors import PluginError, RequestError
from quire.outputs import Messages, Prompt, SampleLogprobs, ToolCall
from quire.sampling_params import BeamSearchParams, SamplingParams

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
WITHOUT_BODY = ("GET", "DELETE")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")


@dataclass(frozen=True, slots=True)
class HTTPRouteCapabilities:
    """Properties of a route, declared at registration.

    Attributes:
        path: Path, such as `/acme/summary`: segments of letters, digits, `.`, `_`, `~` and `-`. It
            must not be one of quire's.
        method: HTTP method. The host reads a JSON body with POST, PUT and PATCH.
        is_admin: Whether requests need an admin key.
        generates: Whether requests may generate. While the queue of the engine is full, those of
            such a route are refused before their body is read.
    """

    path: str
    method: str = "POST"
    is_admin: bool = False
    generates: bool = False

    def __post_init__(self) -> None:
        is_path = isinstance(self.path, str) and _PATH.fullmatch(self.path)
        if not is_path or {".", ".."} & {*self.path.split("/")}:
            raise PluginError(
                "the path of an HTTP route has segments of letters, digits, '.', '_', '~' and '-', "
                f"as in '/acme/summary'; got {self.path!r}"
            )
        if self.method not in METHODS:
            raise PluginError(
                f"the method of an HTTP route must be one of {', '.join(METHODS)}; "
                f"got {self.method!r}"
            )
        if self.generates and self.method == "GET":
            raise PluginError(
                f"the HTTP route GET {self.path} cannot generate: the limits of keys do not count "
                "requests with GET; use POST"
            )


class RouteRefusedError(RequestError):
    """A route refuses a request; `InvalidRequestError` does the same with status 400.

    Args:
        message: Message for the client: the problem, and what to do.
        status: HTTP status, from 400 to 499.
        code: Stable name of the failure.
        param: Field of the body at fault.

    Raises:
        PluginError: The status is another one.
    """

    def __init__(
        self, message: str, *, status: int = 400, code: str = "refused", param: str | None = None
    ) -> None:
        if not isinstance(status, int) or not 400 <= status <= 499:
            raise PluginError(
                f"the status of a RouteRefusedError is a number from 400 to 499, got {status!r}"
            )
        super().__init__(message, param=param)
        self.status = status
        self.name = code


class CompletionPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a completion that a route generates; a whole completion is one piece.

    Attributes:
        index: Index among the n completions.
        text: Text; of a chat without reasoning and tool calls.
        reasoning: Reasoning of a chat.
        tool_calls: Complete tool calls of a chat.
        token_ids: Token ids, reasoning and calls included.
        logprobs: Log probabilities, if the parameters ask for them.
        finish_reason: "stop", "length", "repetition" or "tool_calls"; None before the last piece.
        stop_reason: The stop string or stop token id that ended it; None for end-of-text.
    """

    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    token_ids: Sequence[int] = ()
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a completion so far; cached tokens are among those of the prompt."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int


class RouteCompletion(Protocol):
    """Completions that a route has asked for; either iterate over the pieces or take them whole.

    Any task may read them. Leaving the iteration early, or the end of the request, aborts what
    still runs. Both ways raise a `RequestError` if the request is invalid, is refused by a limit of
    the key, or fails; let it pass, and the client gets it.
    """

    def __aiter__(self) -> AsyncIterator[CompletionPiece]:
        """Generate; yield the pieces as they come, those of n completions interleaved."""

    async def whole(self) -> list[CompletionPiece]:
        """Generate; return the whole completions."""

    @property
    def token_counts(self) -> TokenUsage:
        """Token counts so far."""


class RouteRequest(Protocol):
    """One request, as a route gets it. Valid until its response has ended."""

    @property
    def body(self) -> Any:
        """The body, an instance of the route's `body`; None if that is None."""

    @property
    def query(self) -> Mapping[str, str]:
        """Parameters of the URL; of a repeated one the last value."""

    @property
    def client(self) -> str:
        """Name of the key, or address of a client without one."""

    @property
    def request_id(self) -> str:
        """Id of the request, as in the header `X-Request-Id` of the response and in logs."""

    @property
    def model_name(self) -> str:
        """Name of the model that is served."""

    @property
    def model_names(self) -> Sequence[str]:
        """Names of the model and the adapters that the client may use."""

    @property
    def max_model_len(self) -> int:
        """Largest number of tokens of a prompt and its completion together."""

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text.

        Raises:
            RequestError: The text is too long for the model.
        """

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False
    ) -> str:
        """Return the text of token ids.

        Raises:
            RequestError: An id is not in the vocabulary.
        """

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | BeamSearchParams | None = None,
        *,
        model: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
    ) -> RouteCompletion:
        """Return completions of a prompt, to be generated when they are read.

        The limits of the client's key apply, and its usage counts the tokens. Each call counts as a
        request of the key; the first one is the request itself.

        Args:
            prompt: Text, token ids, or a dict with `prompt` or `prompt_token_ids`.
            params: Parameters of sampling or of a beam search.
            model: Name of the model or of an adapter; None for the model.
            priority: Priority, smaller first, if the scheduling policy reads it.
            timeout_s: Seconds that generating may take, from the request's arrival on.

        Raises:
            PluginError: The request is over, or the route has not declared that it generates.
        """

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | BeamSearchParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] | None = None,
        model: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
    ) -> RouteCompletion:
        """Return completions of a conversation; reasoning and tool calls are split off.

        Args:
            messages: Messages in OpenAI's format.
            params: Parameters of sampling or of a beam search.
            tools: Tools in OpenAI's format, which the model may call.
            template_variables: Further variables for the chat template.
            model: As for `generate`.
            priority: As for `generate`.
            timeout_s: As for `generate`.
        """


class HTTPRoute(ABC):
    """One operation of the HTTP API. One instance a process, made at start-up without arguments.

    The first line of the class's docstring is its summary in the API description.

    Attributes:
        body: Struct of the JSON body; None: the route takes none. A field that it does not
            declare is refused.
        response: Struct of the response, for the API description; None: any JSON.
        event: Struct of one event of a stream, for the API description.
    """

    body: ClassVar[type[msgspec.Struct] | None] = None
    response: ClassVar[type[msgspec.Struct] | None] = None
    event: ClassVar[type[msgspec.Struct] | None] = None

    @abstractmethod
    async def respond(self, request: RouteRequest) -> Any:
        """Return the response: a struct or other JSON data, or an async iterator of events.

        It runs in the event loop of the server, so it must not block: await, or use a thread. It
        is cancelled when the client disconnects or the time limit of requests is over. Everything
        but a `RequestError` that it raises is a failure of the plugin: the client gets status 500,
        the log the traceback.

        Raises:
            RequestError: The request is refused, with its message.
        """
