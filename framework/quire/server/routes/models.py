"""Routes of the served model and its adapters."""

import time
from pathlib import PurePath
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.async_frontend import AsyncFrontend
from quire.server.http.json_response import json_response
from quire.server.keys.account import account_of

_REPOSITORY = "models--"  # begins the folder of a repository in the hub's cache


class ModelCard(msgspec.Struct, kw_only=True):
    """One entry of the list; `root` and `parent` say where it comes from, as in vLLM.

    The root of the model is its name. That of an adapter is the id of its repository, or the path
    of its files: of an absolute one the last part, as clients shall not see the server's folders.
    """

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
            root = root_of(adapter.path)
            cards.append(
                ModelCard(
                    id=name, created=self._created, root=root, parent=base, max_model_len=length
                )
            )
        return cards


def root_of(path: str) -> str:
    """Return what clients see of the path of an adapter's files."""
    parts = PurePath(path).parts
    for part in parts:
        if part.startswith(_REPOSITORY):
            return part.removeprefix(_REPOSITORY).replace("--", "/", 1)
    return parts[-1] if PurePath(path).is_absolute() else path


def check_model(request: Request, frontend: AsyncFrontend, name: str | None) -> None:
    """Check the name of a model or an adapter for a route that generates nothing.

    Raises:
        UnknownModelError: There is none of this name, or the request's key may not use it.
    """
    account_of(request.scope).check_model(name or frontend.model_name)
    frontend.resolve_adapter(name)
