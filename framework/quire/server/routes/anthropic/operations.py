"""The operations of Anthropic's API."""

from quire.server.routes.anthropic.bodies import CountTokensBody, MessagesBody
from quire.server.routes.anthropic.count_tokens import CountTokensRoute
from quire.server.routes.anthropic.message import EVENTS, Message, MessageTokens
from quire.server.routes.anthropic.messages import MessagesRoute
from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.operation import Operation

MESSAGES_PATH = "/v1/messages"


def anthropic_operations(turns: ChatTurns) -> list[Operation]:
    """Return the operations of Anthropic's API.

    Args:
        turns: Turns that messages are made of.
    """
    return [
        Operation(
            MESSAGES_PATH,
            MessagesRoute(turns).create,
            "POST",
            MessagesBody,
            Message,
            EVENTS,
            has_sampler_fields=True,
        ),
        Operation(
            f"{MESSAGES_PATH}/count_tokens",
            CountTokensRoute(turns).count,
            "POST",
            CountTokensBody,
            MessageTokens,
        ),
    ]
