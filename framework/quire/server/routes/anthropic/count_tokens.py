"""POST /v1/messages/count_tokens: the length that a prompt of /v1/messages has or would have."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.intake.time_limit import TimeLimit
from quire.server.http.json_response import EncodedResponse, json_of
from quire.server.routes.anthropic.bodies import REFUSED_OF_MESSAGES, CountTokensBody
from quire.server.routes.anthropic.chat_body import translated_body
from quire.server.routes.anthropic.message import MessageTokens
from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.models import check_model
from quire.server.wire.bodies import Body, read_body
from quire.server.wire.fields import sampler_values
from quire.server.wire.sender import Sender


class CountTokensRoute:
    """Endpoint of /v1/messages/count_tokens."""

    def __init__(self, turns: ChatTurns) -> None:
        self._turns = turns

    async def count(self, request: Request) -> Response:
        """Return the number of tokens of a conversation's prompt."""
        turns, frontend = self._turns, self._turns.frontend
        body = await read_body(request, CountTokensBody)
        sampler_values(body, (), {}, turns.unknown, REFUSED_OF_MESSAGES)
        check_model(request, frontend, body.typed.model)
        limit = frontend.time_limit(Sender.of(request.scope).arrival_s)
        return EncodedResponse(partial(self._counted, body, limit), lambda: None)

    async def _counted(self, body: Body[CountTokensBody], limit: TimeLimit) -> bytes:
        async with limit.hold():
            found = await translated_body(body, self._turns)
            chat = Body(found.chat, {}, body.num_bytes)
            num_tokens = await self._turns.num_prompt_tokens(chat)
        return json_of(MessageTokens(num_tokens))
