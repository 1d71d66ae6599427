"""Limits of tool servers: those that options set, and those that hold always."""

from dataclasses import dataclass

from quire.config import ServerSettings

LEAST_MESSAGE_BYTES = 2 * 2**20  # that a message of a server may have, whatever the options say
BYTES_PER_OUTPUT = 8  # that a message may have for each byte of an output, which may be escaped
MAX_TOOLS = 512  # of one server
MAX_TOOL_BYTES = 32 * 2**10  # JSON of one tool: its description and its schema
MAX_LISTING_BYTES = 2**20  # of all tools of a server
MAX_LISTING_PAGES = 64
MAX_CALLS_AT_ONCE = 32  # of one server; others wait, within their time
MAX_LISTING_AGE_S = 60.0  # after which the tools are listed again, when they are asked for
START_TIMEOUT_S = 60.0  # until a server is connected and has listed its tools
STOP_TIMEOUT_S = 2.0  # that a command has to exit once its input is closed


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Limits of the calls of all requests.

    Attributes:
        max_rounds: Number of times that the model may call tools in one response.
        timeout_s: Seconds that one call may take.
        max_bytes: Largest size of the output of one call, in UTF-8.
    """

    max_rounds: int
    timeout_s: float
    max_bytes: int

    @classmethod
    def of(cls, settings: ServerSettings) -> "ToolLimits":
        """Return the limits that the settings set."""
        return cls(
            settings.tool_server_max_rounds,
            settings.tool_server_timeout_s,
            settings.tool_server_max_bytes,
        )

    @property
    def message_bytes(self) -> int:
        """Largest size of a message of a server, which is read whole."""
        return max(LEAST_MESSAGE_BYTES, BYTES_PER_OUTPUT * self.max_bytes)
