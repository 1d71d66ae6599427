"""The tables of fields of all operations with a body, for docs/fields.md; a family adds its own."""

from quire.server.routes.anthropic.bodies import (
    REFUSED_OF_MESSAGES,
    CountTokensBody,
    MessagesBody,
)
from quire.server.routes.ollama.ollama_models import ShowBody
from quire.server.routes.ollama.ollama_protocol import (
    REFUSED_OF_OLLAMA,
    OllamaChatBody,
    OllamaGenerateBody,
)
from quire.server.routes.responses.refused_fields import REFUSED_OF_RESPONSES
from quire.server.wire.field_table import FieldTable
from quire.server.wire.fields import REFUSED, REFUSED_IN_TOKENIZE
from quire.server.wire.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from quire.server.wire.responses import ResponseBody

FIELD_TABLES = (
    FieldTable("POST /v1/chat/completions", ChatBody, REFUSED),
    FieldTable("POST /v1/completions", CompletionBody, REFUSED),
    FieldTable("POST /v1/messages", MessagesBody, REFUSED_OF_MESSAGES),
    FieldTable("POST /v1/messages/count_tokens", CountTokensBody, REFUSED_OF_MESSAGES),
    FieldTable("POST /v1/responses", ResponseBody, REFUSED_OF_RESPONSES),
    FieldTable("POST /api/chat", OllamaChatBody, REFUSED_OF_OLLAMA),
    FieldTable("POST /api/generate", OllamaGenerateBody, REFUSED_OF_OLLAMA),
    FieldTable("POST /api/show", ShowBody),
    FieldTable("POST /tokenize", TokenizeBody, REFUSED_IN_TOKENIZE),
    FieldTable("POST /detokenize", DetokenizeBody),
)
