"""The families of routes: a path says which dialect its responses have.

So refusals have the right shape before any route is known.
"""

from quire.server.wire.anthropic_dialect import ANTHROPIC
from quire.server.wire.dialect import OPENAI, Dialect
from quire.server.wire.ollama_dialect import OLLAMA
from quire.server.wire.responses_dialect import RESPONSES

_FAMILIES = (("/v1/messages", ANTHROPIC), ("/v1/responses", RESPONSES), ("/api", OLLAMA))


def dialect_of(path: str) -> Dialect:
    """Return the dialect of the family that a path belongs to."""
    for root, dialect in _FAMILIES:
        if path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
            return dialect
    return OPENAI
