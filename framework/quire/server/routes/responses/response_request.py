"""What a request makes of a response before it is generated: its fields, and what it continues."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.types import Scope

from quire.errors import InvalidRequestError, RequestFailedError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.http.json_response import json_of
from quire.server.keys.account import Account
from quire.server.routes.chat.chat_prompt import RENDERED
from quire.server.routes.chat.chat_turn import ChatTurn, ChatTurns
from quire.server.routes.responses.chat_request import (
    chat_body,
    errors_as_sent,
    places_of_tools,
)
from quire.server.routes.responses.input_items import Item, items_of
from quire.server.routes.responses.mcp.approvals import RunApprovals
from quire.server.routes.responses.mcp.offered_tools import OfferedTools
from quire.server.routes.responses.mcp.requested_server import MCP
from quire.server.routes.responses.mcp.server_tools import (
    ServerTools,
    ToolContext,
    choice_after_calls,
    tool_context,
)
from quire.server.routes.responses.response_run import ResponseRun
from quire.server.routes.responses.store.response_store import ResponseStore
from quire.server.routes.responses.store.stored_response import StoredResponse
from quire.server.wire.bodies import Body
from quire.server.wire.http_errors import ERROR_CODE, detail_of, log_failure
from quire.server.wire.params import response_id
from quire.server.wire.protocol import ChatBody
from quire.server.wire.responses import ReasoningOptions, ResponseBody, ResponseObject, TextOptions
from quire.server.wire.sender import Sender

_NO_TEXT_OPTIONS, _NO_REASONING_OPTIONS = TextOptions(), ReasoningOptions()


class ResponseRequests:
    """Prepares responses.

    Args:
        turns: Turns of conversations.
        store: Stored responses; None if this server stores none.
        tools: Tools of tool servers.
    """

    def __init__(self, turns: ChatTurns, store: ResponseStore | None, tools: ServerTools) -> None:
        self._turns = turns
        self._store = store
        self._tools = tools

    async def prepare(
        self, scope: Scope, body: Body[ResponseBody], sender: Sender, extra_args: dict[str, Any]
    ) -> tuple[ResponseRun, StoredResponse | None]:
        """Return a response that can be generated, and what will be stored of it, if anything.

        Args:
            scope: ASGI scope of the request, which gets the code of a failure.
            body: Body of the request.
            sender: Client that sent it.
            extra_args: Fields for the samplers.

        Raises:
            RequestError: Something in the request is wrong.
        """
        typed, new_id = body.typed, _id(body.typed.request_id)
        is_stored = self._stores(typed)
        if self._store is not None and is_stored:
            self._store.check_id(sender.account, new_id)
        previous = self._previous(typed, sender.account)
        own = _own_items(typed, has_previous=previous is not None)
        size = body.num_bytes + (0 if previous is None else previous.total_bytes)
        offered = await self._tools.offered(typed, self._turns.unknown)
        places = places_of_tools(typed, offered)
        conversation = _Conversation(typed, previous, own, offered)
        prepare = partial(self._turn, conversation, size, sender, extra_args)
        with errors_as_sent(places):
            turn = await prepare((), 0)
        if turn is None:
            raise RequestFailedError("the first turn may have no tokens")
        ran = RunApprovals() if previous is None else previous.run_approvals
        tools = self._tools.rounds(typed, offered, conversation.tools, prepare, places, ran)
        params = turn.generation.params
        response = _begun(new_id, typed, turn.generation.model, (params.temperature, params.top_p))
        response.store = is_stored
        stored = None
        if is_stored:
            begun = json_of(response) if typed.background else b""
            stored = StoredResponse(response.id, sender.account, json_of(own), previous, begun)
        keep = None if typed.background or stored is None else partial(self._keep, stored)
        return ResponseRun(turn, response, keep, partial(_log, scope), tools), stored

    async def _turn(
        self,
        conversation: "_Conversation",
        size: int,
        sender: Sender,
        extra_args: dict[str, Any],
        turns: Sequence[Sequence[Item]],
        num_tokens: int,
    ) -> ChatTurn | None:
        """Prepare a turn; None if the response may have no more tokens.

        Args:
            conversation: What the request says.
            size: Bytes of that.
            sender: Client that sent it.
            extra_args: Fields for the samplers.
            turns: Items of each turn in the response so far.
            num_tokens: Number of tokens of these turns.
        """
        convert = partial(conversation.chat_body, self._turns.unknown, turns, num_tokens)
        size += len(json_of(turns)) if turns else 0
        chat = await self._turns.frontend.lanes.run(size // RENDERED, convert)
        if chat is None:
            return None
        return await self._turns.prepare(Body(chat, {}, size), sender, extra_args)

    def _keep(self, stored: StoredResponse, response: bytes) -> bool:
        stored.response = response
        return self._store is not None and self._store.keep(stored)

    def _stores(self, body: ResponseBody) -> bool:
        """Whether the response is stored.

        Raises:
            InvalidRequestError: It is asked for, and cannot be.
        """
        if self._store is None:
            for name in ("store", "background"):
                if getattr(body, name):
                    raise no_store(name)
            return False
        if body.background and body.store is False:
            raise InvalidRequestError(
                "background: true needs store: true, or the response could not be retrieved",
                param="background",
            )
        return body.store is not False

    def _previous(self, body: ResponseBody, account: Account) -> StoredResponse | None:
        """Return the response that the request continues.

        Raises:
            RequestError: There is none, or it is still generated.
        """
        name = "previous_response_id"
        if body.previous_response_id is None:
            return None
        if self._store is None:
            raise no_store(name)
        found = self._store.find(account, body.previous_response_id, name)
        if found.is_running:
            raise InvalidRequestError(
                f"the response {found.id!r:.140} is still generated; wait for its end", param=name
            )
        return found


def no_store(param: str | None = None) -> InvalidRequestError:
    """Return the error of a request that needs a store, where there is none."""
    return InvalidRequestError(
        "this server stores no responses, as it has several front ends (--api-server-count) or "
        "--responses-store-max 0; send store: false, and all items as input",
        param=param,
    )


class _Conversation:
    """What a request says, from which each turn of the response is prepared.

    Attributes:
        tools: What it says of tools of tool servers, once the first turn is prepared.
    """

    def __init__(
        self,
        body: ResponseBody,
        previous: StoredResponse | None,
        own: Sequence[Item],
        offered: OfferedTools,
    ) -> None:
        self._body = body
        self._previous = previous
        self._own = own
        self._offered = offered
        self.tools = ToolContext([], [])

    def chat_body(
        self, unknown: UnknownFields, turns: Sequence[Sequence[Item]], num_tokens: int
    ) -> ChatBody | None:
        """Return a turn's request as one for a chat; None if it may have no tokens."""
        body = self._body if not turns else _after_calls(self._body, num_tokens)
        if body is None:
            return None
        before = [] if self._previous is None else self._previous.items()
        chat = chat_body(body, before, self._own, unknown, self._offered, turns)
        if not turns:
            self.tools = tool_context(before, self._own, self._offered)
        return chat


def _after_calls(body: ResponseBody, num_tokens: int) -> ResponseBody | None:
    """Return the request of a turn after calls of tools; None if it may have no tokens."""
    num_left = body.max_output_tokens
    if num_left is not None:
        num_left -= num_tokens
        if num_left <= 0:
            return None
    choice = choice_after_calls(body.tool_choice)
    return msgspec.structs.replace(body, max_output_tokens=num_left, tool_choice=choice)


def _own_items(body: ResponseBody, *, has_previous: bool) -> list[Item]:
    """Return the items of the request itself.

    Raises:
        InvalidRequestError: There is nothing to respond to.
    """
    if body.input:
        return items_of(body.input)
    if body.input is None and has_previous:
        return []
    raise InvalidRequestError(
        "input must be a text or a list of items, and is empty", param="input"
    )


def _begun(
    new_id: str, body: ResponseBody, model: str, sampling: tuple[float, float]
) -> ResponseObject:
    """Return the response to a request as it begins."""
    temperature, top_p = sampling
    text, reasoning = body.text or _NO_TEXT_OPTIONS, body.reasoning or _NO_REASONING_OPTIONS
    return ResponseObject(
        id=new_id,
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": reasoning.effort, "summary": None},
        safety_identifier=body.safety_identifier,
        store=False,
        temperature=temperature,
        text={"format": text.format or {"type": "text"}},
        tool_choice=body.tool_choice or "auto",
        tools=[_shown_tool(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _shown_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return tool if tool.get("type") == MCP else {"parameters": None, "strict": None} | tool


def _id(request_id: str | None) -> str:
    """Return the id of a response, which is a part of the paths that begin with it.

    Raises:
        InvalidRequestError: The client's `request_id` cannot be a part of it.
    """
    if request_id is not None and "/" in request_id:
        raise InvalidRequestError(
            f"request_id must not have '/', as it is a part of paths; got {request_id!r:.140}",
            param="request_id",
        )
    return response_id("resp_", request_id)


def _log(scope: Scope, error: Exception) -> None:
    """Log a failure that has no HTTP status any more, and leave its code in the scope."""
    request_id = scope["quire_request_id"]
    scope[ERROR_CODE] = detail_of(error, request_id).code
    log_failure(error, request_id)
