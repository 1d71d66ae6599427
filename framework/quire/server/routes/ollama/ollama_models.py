"""GET /api/tags, /api/ps and /api/version, and POST /api/show: what Ollama's clients read."""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire import __version__
from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.served_model import ServedModel
from quire.frontend.unknown_fields import UnknownFields
from quire.server.http.json_response import json_response
from quire.server.keys.account import account_of
from quire.server.routes.models import check_model
from quire.server.routes.ollama.ollama_request import served_name
from quire.server.wire.bodies import read_body
from quire.server.wire.common_fields import about, no_effect
from quire.server.wire.fields import check_declared

NEVER = "0001-01-01T00:00:00Z"  # the time of a model that stays loaded, as Ollama writes it


class ShowBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/show."""

    model: str | None = None
    name: Annotated[str | None, about("The old name of model.")] = None
    verbose: Annotated[bool | None, no_effect("all that is known is in the answer.")] = None


class ModelDetails(msgspec.Struct, kw_only=True):
    """What a model is; `parent_model` is the model of an adapter."""

    parent_model: str = ""
    format: str = "safetensors"
    family: str
    families: list[str]
    parameter_size: str = ""
    quantization_level: str


class ModelTag(msgspec.Struct, kw_only=True):
    """A model or an adapter that is served."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class ModelTags(msgspec.Struct):
    """The response of /api/tags."""

    models: list[ModelTag]


class RunningModel(msgspec.Struct, kw_only=True):
    """A model that is loaded, as all are that are served."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str = NEVER
    size_vram: int
    context_length: int


class RunningModels(msgspec.Struct):
    """The response of /api/ps."""

    models: list[RunningModel]


class ShownModel(msgspec.Struct, kw_only=True):
    """The response of /api/show."""

    modelfile: str
    parameters: str = ""
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class Version(msgspec.Struct):
    """The response of /api/version: quire's version."""

    version: str


class OllamaModelRoutes:
    """Endpoints that describe models.

    Args:
        frontend: Frontend that serves them.
        unknown: What happens to fields that do not exist.
    """

    def __init__(self, frontend: AsyncFrontend, unknown: UnknownFields) -> None:
        self._frontend = frontend
        self._unknown = unknown
        self._loaded_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")

    async def tags(self, request: Request) -> Response:
        """Return the model and the adapters that are served."""
        return json_response(ModelTags([self._tag(name) for name in self._names(request)]))

    async def ps(self, request: Request) -> Response:
        """Return the models that are loaded: all that are served."""
        return json_response(RunningModels([self._running(name) for name in self._names(request)]))

    async def show(self, request: Request) -> Response:
        """Return what is known of a model."""
        body = await read_body(request, ShowBody)
        check_declared(body, self._unknown)
        given = body.typed.model or body.typed.name
        if not given:
            raise InvalidRequestError("model is missing; send the name of one", param="model")
        name = served_name(self._frontend, given)
        check_model(request, self._frontend, name)
        parsers, family = self._frontend.completion_parsers, self._model.family
        capabilities = ["completion"]
        capabilities += ["tools"] if parsers.reads_calls else []
        capabilities += ["thinking"] if parsers.reads_reasoning else []
        shown = ShownModel(
            modelfile=f"FROM {self._frontend.model_name}\n",
            template=self._frontend.chat_template.source,
            details=self._details(name),
            model_info={
                "general.architecture": family,
                f"{family}.context_length": self._frontend.max_model_len,
                f"{family}.vocab_size": self._frontend.tokenizer.vocab_size,
            },
            capabilities=capabilities,
            modified_at=self._loaded_at,
        )
        return json_response(shown)

    async def version(self, request: Request) -> Response:
        """Return quire's version."""
        del request
        return json_response(Version(__version__))

    @property
    def _model(self) -> ServedModel:
        return self._frontend.served_model

    def _names(self, request: Request) -> list[str]:
        account = account_of(request.scope)
        names = (self._frontend.model_name, *self._frontend.adapters)
        return [name for name in names if account.may_use(name)]

    def _tag(self, name: str) -> ModelTag:
        return ModelTag(
            name=tagged(name),
            model=tagged(name),
            modified_at=self._loaded_at,
            size=self._model.num_bytes,
            digest=self._digest(name),
            details=self._details(name),
        )

    def _running(self, name: str) -> RunningModel:
        model = self._model
        return RunningModel(
            name=tagged(name),
            model=tagged(name),
            size=model.num_bytes,
            digest=self._digest(name),
            details=self._details(name),
            size_vram=model.num_bytes if model.is_on_gpu else 0,
            context_length=self._frontend.max_model_len,
        )

    def _digest(self, name: str) -> str:
        adapter = self._frontend.adapters.get(name)
        return self._model.digest if adapter is None else adapter.content_hash

    def _details(self, name: str | None) -> ModelDetails:
        is_adapter = name in self._frontend.adapters
        return ModelDetails(
            parent_model=self._frontend.model_name if is_adapter else "",
            family=self._model.family,
            families=[self._model.family],
            quantization_level=self._model.weights,
        )


def tagged(name: str) -> str:
    """Return a name as Ollama lists it, with a tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"
