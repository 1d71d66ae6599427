"""POST /tokenize and /detokenize, with the fields of vLLM's routes."""

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat.tools.checked_tools import checked_tools
from quire.frontend.intake.time_limit import TimeLimit
from quire.frontend.unknown_fields import UnknownFields
from quire.server.http.json_response import EncodedResponse, json_of, json_response
from quire.server.routes.chat.chat_prompt import RENDERED, rendered_chat
from quire.server.routes.models import check_model
from quire.server.wire.bodies import Body, read_body
from quire.server.wire.fields import REFUSED_IN_TOKENIZE, check_declared
from quire.server.wire.protocol import DetokenizeBody, TokenizeBody
from quire.server.wire.sender import Sender

# Fields of /tokenize that a prompt, which no template renders, cannot have.
OF_MESSAGES = (
    "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
    "reasoning_effort",
)  # fmt: skip


class Tokens(msgspec.Struct):
    """The response of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizedText(msgspec.Struct):
    """The response of /detokenize."""

    prompt: str


class TokenRoutes:
    """Endpoints of /tokenize and /detokenize."""

    def __init__(self, frontend: AsyncFrontend, unknown: UnknownFields) -> None:
        self._frontend = frontend
        self._unknown = unknown

    async def tokenize(self, request: Request) -> Response:
        """Return the token ids of a text, or of a conversation."""
        body = await read_body(request, TokenizeBody)
        check_declared(body, self._unknown, REFUSED_IN_TOKENIZE)
        check_model(request, self._frontend, body.typed.model)
        _check_kind(body.typed)
        limit = self._frontend.time_limit(Sender.of(request.scope).arrival_s)
        return EncodedResponse(partial(self._tokens, body, limit), lambda: None)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids."""
        body = await read_body(request, DetokenizeBody)
        check_declared(body, self._unknown)
        check_model(request, self._frontend, body.typed.model)
        check_token_ids(body.typed.tokens, self._frontend.tokenizer.vocab_size)
        work = partial(self._frontend.tokenizer.decode, body.typed.tokens, False)
        text = await self._frontend.lanes.run(len(body.typed.tokens), work)
        return json_response(DetokenizedText(text))

    async def _tokens(self, body: Body[TokenizeBody], limit: TimeLimit) -> bytes:
        """Return the tokens of a text or of a conversation as JSON."""
        async with limit.hold():
            if body.typed.messages is None:
                tokens = await self._of_text(body.typed)
            else:
                tokens = await self._of_messages(body)
        response = Tokens(len(tokens), self._frontend.max_model_len, tokens)
        if body.typed.return_token_strs:
            spelt = self._frontend.tokenizer.backend.id_to_token
            response.token_strs = [spelt(token_id) or "" for token_id in tokens]
        return json_of(response)

    async def _of_text(self, body: TokenizeBody) -> list[int]:
        text = body.prompt or ""
        encode = partial(
            self._frontend.intake.prompts.encode,
            text,
            add_special_tokens=body.add_special_tokens is not False,
        )
        return await self._frontend.lanes.run(len(text), encode)

    async def _of_messages(self, body: Body[TokenizeBody]) -> list[int]:
        frontend, tools = self._frontend, checked_tools(body.typed.tools, self._unknown)
        render = partial(rendered_chat, frontend, body.typed, tools, self._unknown)
        rendered = await frontend.lanes.run(body.num_bytes // RENDERED, render)
        encode = partial(
            frontend.intake.prompts.encode,
            rendered.text,
            add_special_tokens=bool(body.typed.add_special_tokens),
            breaks=rendered.breaks,
            field="messages",
        )
        return await frontend.lanes.run(len(rendered.text), encode)


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """Check that token ids are in the vocabulary.

    Raises:
        InvalidRequestError: One is not.
    """
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"tokens contains {token_id}; token ids are from 0 to {vocab_size - 1}",
                param="tokens",
            )


def _check_kind(body: TokenizeBody) -> None:
    """Check that there is either a prompt or messages.

    Raises:
        InvalidRequestError: There are both or neither, or a field that belongs to messages only.
    """
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("send either prompt or messages", param="prompt")
    if body.messages is None:
        for name in OF_MESSAGES:
            if getattr(body, name) is not None:
                raise InvalidRequestError(
                    f"{name} is for messages; a prompt is tokenized as it is", param=name
                )
