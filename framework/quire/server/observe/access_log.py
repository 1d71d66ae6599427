"""Access log: a JSON object a line for each HTTP request; never prompts, completions or keys."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quire.errors import SettingsError
from quire.server.observe.line_writer import LineWriter
from quire.server.observe.observed_exchange import ObservedExchange

STDOUT = "-"
MAX_PATH = 256  # characters


class AccessLog:
    """Writes a line for each HTTP request.

    Args:
        writer: Writer of the lines.
    """

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    @classmethod
    def open(cls, target: str) -> "AccessLog":
        """Open a file to append to, or the standard output for "-".

        Raises:
            SettingsError: The file cannot be opened.
        """
        try:
            return cls(LineWriter(None if target == STDOUT else Path(target)))
        except OSError as error:
            raise SettingsError(
                f"the access log {target!r} cannot be opened: {error.strerror or error}; name a "
                "file in a folder that exists and can be written, or - for the standard output"
            ) from None

    def add(self, exchange: ObservedExchange) -> None:
        """Write the line of a request that is over."""
        self._writer.write(line_of(exchange))

    def num_dropped(self) -> int:
        """Return the number of lines that were lost, because the file was too slow."""
        return self._writer.num_dropped

    def close(self) -> None:
        """Write the lines that wait, and close the file."""
        self._writer.close()


def line_of(exchange: ObservedExchange) -> str:
    """Return the line: ASCII without control characters, whatever a client has sent."""
    fields = _fields_of_http(exchange) | _fields_of_generation(exchange)
    if exchange.num_tool_calls is not None:
        fields["tool_calls"] = exchange.num_tool_calls
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":")) + "\n"


def _fields_of_http(exchange: ObservedExchange) -> dict[str, Any]:
    ended = datetime.fromtimestamp(exchange.ended_unix_s, UTC)
    return {
        "time": ended.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "request_id": exchange.request_id,
        "client": exchange.client,
        "method": exchange.method[:MAX_PATH],
        "path": exchange.path[:MAX_PATH],
        "status": exchange.status,
        "duration_s": round(exchange.duration_s, 6),
        "error_code": exchange.error_code,
    }


def _fields_of_generation(exchange: ObservedExchange) -> dict[str, Any]:
    generation = exchange.generation
    if generation is None:
        return {}
    usage, records = generation.usage(), generation.records
    firsts = [r.time_to_first_token_s for r in records if r.time_to_first_token_s is not None]
    return {
        "model": generation.model,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "ttft_s": round(min(firsts), 6) if firsts else None,
        "finish_reasons": [record.finish_reason for record in records],
    }
