"""The operations of Ollama's API."""

from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.ollama.ollama_models import (
    ModelTags,
    OllamaModelRoutes,
    RunningModels,
    ShowBody,
    ShownModel,
    Version,
)
from quire.server.routes.ollama.ollama_protocol import (
    ChatReply,
    GenerateReply,
    OllamaChatBody,
    OllamaGenerateBody,
)
from quire.server.routes.ollama.ollama_routes import OllamaRoutes
from quire.server.routes.operation import Operation
from quire.server.wire.common_fields import QueuedBody

OLLAMA_BODIES: dict[str, type[QueuedBody]] = {
    "/api/chat": OllamaChatBody,
    "/api/generate": OllamaGenerateBody,
}


def ollama_operations(turns: ChatTurns) -> list[Operation]:
    """Return the operations of Ollama's API.

    Args:
        turns: Turns of conversations.
    """
    routes = OllamaRoutes(turns)
    models = OllamaModelRoutes(turns.frontend, turns.unknown)
    return [
        Operation(
            "/api/chat",
            routes.chat,
            "POST",
            OllamaChatBody,
            ChatReply,
            ChatReply,
            has_sampler_fields=True,
        ),
        Operation(
            "/api/generate",
            routes.generate,
            "POST",
            OllamaGenerateBody,
            GenerateReply,
            GenerateReply,
            has_sampler_fields=True,
        ),
        Operation("/api/tags", models.tags, response=ModelTags),
        Operation("/api/ps", models.ps, response=RunningModels),
        Operation("/api/show", models.show, "POST", ShowBody, ShownModel),
        Operation("/api/version", models.version, response=Version),
    ]
