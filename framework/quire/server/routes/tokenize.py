"""POST /tokenize and /detokenize, with the fields of vLLM's routes."""

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.intake.time_limit import TimeLimit
from quire.frontend.unknown_fields import UnknownFields
from quire.server.http.json_response import EncodedResponse, json_of, json_response
from quire.server.routes.models import check_model
from quire.server.wire.bodies import read_body
from quire.server.wire.fields import check_declared
from quire.server.wire.protocol import DetokenizeBody, TokenizeBody
from quire.server.wire.sender import Sender


class Tokens(msgspec.Struct):
    """The response of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizedText(msgspec.Struct):
    """The response of /detokenize."""

    prompt: str


class TokenRoutes:
    """Endpoints of /tokenize and /detokenize."""

    def __init__(self, frontend: AsyncFrontend, unknown: UnknownFields) -> None:
        self._frontend = frontend
        self._unknown = unknown

    async def tokenize(self, request: Request) -> Response:
        """Return the token ids of a text."""
        body = await read_body(request, TokenizeBody)
        check_declared(body, self._unknown)
        check_model(request, self._frontend, body.typed.model)
        limit = self._frontend.time_limit(Sender.of(request.scope).arrival_s)
        return EncodedResponse(partial(self._tokens, body.typed, limit), lambda: None)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids."""
        body = await read_body(request, DetokenizeBody)
        check_declared(body, self._unknown)
        check_model(request, self._frontend, body.typed.model)
        self._check(body.typed.tokens)
        work = partial(self._frontend.tokenizer.decode, body.typed.tokens, False)
        text = await self._frontend.lanes.run(len(body.typed.tokens), work)
        return json_response(DetokenizedText(text))

    async def _tokens(self, body: TokenizeBody, limit: TimeLimit) -> bytes:
        """Return the tokens of a text as JSON."""
        encode = partial(
            self._frontend.intake.prompts.encode,
            body.prompt,
            add_special_tokens=body.add_special_tokens,
        )
        async with limit.hold():
            tokens = await self._frontend.lanes.run(len(body.prompt), encode)
        return json_of(Tokens(len(tokens), self._frontend.max_model_len, tokens))

    def _check(self, token_ids: list[int]) -> None:
        size = self._frontend.tokenizer.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < size:
                raise InvalidRequestError(
                    f"tokens contains {token_id}; token ids are from 0 to {size - 1}",
                    param="tokens",
                )
