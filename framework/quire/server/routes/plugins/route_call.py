"""One request to a plugin's route: the `RouteRequest` that the plugin gets."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from starlette.requests import Request

from quire.errors import PluginError
from quire.frontend.async_frontend import AsyncFrontend
from quire.outputs import Messages, Prompt
from quire.sampling_params import BeamSearchParams, SamplingParams
from quire.server.http.early_refusals import limit_of
from quire.server.http.json_response import json_of
from quire.server.observe.observed_exchange import GENERATION
from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.generation import Generation
from quire.server.routes.observed_generations import ObservedGenerations
from quire.server.routes.plugins.completion_limits import CompletionLimits
from quire.server.routes.plugins.hosted_completion import OVER, HostedCompletion, Prepared
from quire.server.routes.tokenize import check_token_ids
from quire.server.wire.bodies import Body
from quire.server.wire.protocol import ChatBody, SamplingBody
from quire.server.wire.sender import Sender


class RouteBody(SamplingBody, kw_only=True):
    """What the queue has to know of a completion of a route."""

    @property
    def completion_limit(self) -> int | None:
        """Maximum number of tokens of a completion; None for the model's length."""
        return self.max_tokens


class RouteCall:
    """One request to a route.

    Args:
        request: HTTP request.
        body: Its body as the route's struct.
        turns: Turns of conversations; it has the frontend.
        generates: Whether the route has declared that it generates.

    Attributes:
        body: The body.
    """

    def __init__(
        self,
        request: Request,
        body: Any,
        turns: ChatTurns,
        *,
        generates: bool,
    ) -> None:
        self.body = body
        self._scope = request.scope
        self._query = request.query_params
        self._sender = Sender.of(request.scope)
        self._turns = turns
        self._generates = generates
        self._completions: list[HostedCompletion] = []
        self._observed: ObservedGenerations | None = None
        self._limits = CompletionLimits(self._sender.account)
        self._is_over = False

    @property
    def query(self) -> Mapping[str, str]:
        """Parameters of the URL; of a repeated one the last value."""
        return dict(self._query)

    @property
    def client(self) -> str:
        """Name of the key, or address of a client without one."""
        return self._sender.client

    @property
    def request_id(self) -> str:
        """Id of the request."""
        return str(self._scope["quire_request_id"])

    @property
    def model_name(self) -> str:
        """Name of the model that is served."""
        return self._frontend.model_name

    @property
    def model_names(self) -> Sequence[str]:
        """Names of the model and the adapters that the client may use."""
        names = (self._frontend.model_name, *self._frontend.adapters)
        return [name for name in names if self._sender.account.may_use(name)]

    @property
    def max_model_len(self) -> int:
        """Largest number of tokens of a prompt and its completion together."""
        return self._frontend.max_model_len

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        encode = partial(
            self._frontend.intake.prompts.encode, text, add_special_tokens=add_special_tokens
        )
        return await self._frontend.lanes.run(len(text), encode)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False
    ) -> str:
        """Return the text of token ids."""
        given = list(token_ids)
        check_token_ids(given, self._frontend.tokenizer.vocab_size)
        decode = partial(self._frontend.tokenizer.decode, given, skip_special_tokens)
        return await self._frontend.lanes.run(len(given), decode)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | BeamSearchParams | None = None,
        *,
        model: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
    ) -> HostedCompletion:
        """Return completions of a prompt."""
        chosen = params or SamplingParams()
        body = RouteBody(
            model=model, priority=priority, timeout_s=timeout_s, max_tokens=chosen.max_tokens
        )
        return self._completion(partial(self._of_prompt, prompt, chosen, body))

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
    ) -> HostedCompletion:
        """Return completions of a conversation."""
        chosen = params or SamplingParams()
        body = ChatBody(
            messages=[dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            chat_template_kwargs=dict(template_variables or {}) or None,
            model=model,
            priority=priority,
            timeout_s=timeout_s,
            max_tokens=chosen.max_tokens,
        )
        return self._completion(partial(self._of_chat, chosen, body))

    async def aclose(self) -> None:
        """Abort what still runs, and release what it holds; from now on nothing is generated."""
        self._is_over = True
        async with AsyncExitStack() as all_of_them:  # also if one of them cannot be closed
            for completion in self._completions:
                all_of_them.push_async_callback(completion.aclose)

    @property
    def _frontend(self) -> AsyncFrontend:
        return self._turns.frontend

    def _completion(self, prepare: Callable[[], Awaitable[Prepared]]) -> HostedCompletion:
        if not self._generates:
            raise PluginError(
                "the route generates, and has not declared it: register it with "
                "HTTPRouteCapabilities(..., generates=True)"
            )
        if self._is_over:
            raise PluginError(OVER)
        self._completions.append(HostedCompletion(prepare, self._limits.one()))
        return self._completions[-1]

    async def _of_prompt(
        self, prompt: Prompt, params: SamplingParams | BeamSearchParams, body: RouteBody
    ) -> Prepared:
        self._check(body)
        given = prompt if isinstance(prompt, dict) else _as_dict(prompt)
        adapter = self._frontend.resolve_adapter(body.model)
        generation = Generation(
            self._frontend, self._turns.budget, [given], params, adapter, body, self._sender
        )
        self._observe(generation)
        return Prepared(generation)

    async def _of_chat(self, params: SamplingParams | BeamSearchParams, body: ChatBody) -> Prepared:
        self._check(body)
        whole = Body(body, {}, len(json_of(body.messages)))
        turn = await self._turns.prepare_with(whole, self._sender, params)
        self._observe(turn.generation)
        return Prepared(turn.generation, turn)

    def _check(self, body: SamplingBody) -> None:
        """Check the queue, and what the client's key may do.

        Raises:
            RequestError: The request is refused.
        """
        self._frontend.check_queue()
        limit_of(self._frontend, self._sender, body)
        self._sender.account.check_model(body.model or self._frontend.model_name)

    def _observe(self, generation: Generation) -> None:
        if self._observed is None:
            self._observed = self._scope[GENERATION] = ObservedGenerations(generation)
        else:
            self._observed.add(generation)


def _as_dict(prompt: str | list[int]) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": prompt}
