"""Routes of the served model and its adapters."""

import time
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.async_frontend import AsyncFrontend
from quire.server.http.json_response import json_response
from quire.server.keys.account import account_of


class ModelCard(msgspec.Struct, kw_only=True):
    """One entry of the list; `root` and `parent` are as in vLLM."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "quire"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct):
    """The list of models."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


class ModelRoutes:
    """GET /v1/models and /v1/models/{id}."""

    def __init__(self, frontend: AsyncFrontend) -> None:
        self._frontend = frontend
        self._created = int(time.time())

    async def list_models(self, request: Request) -> Response:
        """Return the served model and all adapters."""
        account = account_of(request.scope)
        return json_response(ModelList([c for c in self._cards() if account.may_use(c.id)]))

    async def retrieve_model(self, request: Request) -> Response:
        """Return the served model or one adapter."""
        name = request.path_params["model"]
        check_model(request, self._frontend, name)
        return json_response(next(card for card in self._cards() if card.id == name))

    def _cards(self) -> list[ModelCard]:
        base, length = self._frontend.model_name, self._frontend.max_model_len
        cards = [ModelCard(id=base, created=self._created, root=base, max_model_len=length)]
        for name, adapter in self._frontend.adapters.items():
            card = ModelCard(
                id=name, created=self._created, root=adapter.path, parent=base, max_model_len=length
            )
            cards.append(card)
        return cards


def check_model(request: Request, frontend: AsyncFrontend, name: str | None) -> None:
    """Check the name of a model or an adapter for a route that generates nothing.

    Raises:
        UnknownModelError: There is none of this name, or the request's key may not use it.
    """
    account_of(request.scope).check_model(name or frontend.model_name)
    frontend.resolve_adapter(name)
