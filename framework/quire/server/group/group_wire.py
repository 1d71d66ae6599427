"""Messages between a server and the processes that serve HTTP for it.

server -> process   Begin; Serve once all are ready; ReadSamples; Rendered; Drain; StopServing
process -> server   EnteredEngine; ReadyToServe; Report at intervals; Samples; Render; Drained
"""

from typing import Any

import msgspec

from quire.server.observe.merged_families import Sample


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The engine is ready.

    Attributes:
        engine: Where it is, for the code that starts front ends.
    """

    engine: msgspec.Raw


class Serve(msgspec.Struct, frozen=True, tag=True):
    """Accept connections from now on."""


class ReadSamples(msgspec.Struct, frozen=True, tag=True):
    """Return the own metrics."""

    call_id: int


class Rendered(msgspec.Struct, frozen=True, tag=True):
    """The metrics of all processes, as text."""

    call_id: int
    body: bytes
    content_type: str


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Refuse new requests, and say when the running ones have ended."""


class StopServing(msgspec.Struct, frozen=True, tag=True):
    """Abort what runs, and exit."""


ToProcess = Begin | Serve | ReadSamples | Rendered | Drain | StopServing


class EnteredEngine(msgspec.Struct, frozen=True, tag=True):
    """The process is connected to the engine; the folder of the socket can be removed."""


class ReadyToServe(msgspec.Struct, frozen=True, tag=True):
    """The process can serve."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """How the process is.

    Attributes:
        health: Body of its `/health`, and whether that is 200.
        failing: What makes all of its requests fail; None: nothing does.
        samples: Its metrics.
    """

    health: tuple[bool, dict[str, Any]]
    failing: dict[str, Any] | None
    samples: list[Sample]


class Samples(msgspec.Struct, frozen=True, tag=True):
    """The metrics of the process."""

    call_id: int
    samples: list[Sample]


class Render(msgspec.Struct, frozen=True, tag=True):
    """Return the metrics of all processes.

    Attributes:
        call_id: Number of the call.
        accept: Header of the request for them.
    """

    call_id: int
    accept: str


class Drained(msgspec.Struct, frozen=True, tag=True):
    """All requests have ended."""


FromProcess = EnteredEngine | ReadyToServe | Report | Samples | Render | Drained
