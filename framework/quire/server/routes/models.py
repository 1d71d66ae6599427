"""The names that a request may ask for: the served model, and each adapter beside it."""

import time
from dataclasses import dataclass
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.async_frontend import AsyncFrontend
from quire.server.wire.json_response import json_response


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


@dataclass(frozen=True, slots=True)
class Chosen:
    """What `model` of a request stands for."""

    name: str
    adapter: str | None


def choose(frontend: AsyncFrontend, name: str | None) -> Chosen:
    """Return what a request's `model` stands for; without one, the served model.

    Raises:
        UnknownModelError: Nothing is served under the name.
    """
    adapter = frontend.resolve_adapter(name)
    return (
        Chosen(frontend.model_name, None) if adapter is None else Chosen(adapter.name, adapter.name)
    )


class ModelRoutes:
    """GET /v1/models and /v1/models/{id}."""

    def __init__(self, frontend: AsyncFrontend) -> None:
        self._frontend = frontend
        self._created = int(time.time())

    async def list_models(self, request: Request) -> Response:
        """Return all names."""
        del request
        return json_response(ModelList(self._cards()))

    async def retrieve_model(self, request: Request) -> Response:
        """Return one name."""
        name = choose(self._frontend, request.path_params["model"]).name
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
