"""A process that serves HTTP, as its server sees it: its start, its reports, and its end."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.process.children.child_process import ChildProcess
from quire.server.group.control_stream import ControlStream
from quire.server.group.group_wire import (
    Begin,
    Drain,
    Drained,
    EnteredEngine,
    FromProcess,
    ReadSamples,
    ReadyToServe,
    Render,
    Rendered,
    Report,
    Samples,
    Serve,
    StopServing,
)
from quire.server.group.launched import Launched
from quire.server.observe.merged_families import Sample
from quire.server.observe.monitor import RenderAll

ANSWER_S = 3.0  # for metrics; a process that is too busy is shown as it was
SILENCE_LIMIT_S = 10.0  # without a report
EXIT_S = 1.0  # for a process whose connection has ended to exit


class FrontEndMember:
    """One process of the group.

    Args:
        launched: The process, and its end of the control connection.
        render: Renders the metrics of all processes.

    Attributes:
        joined: Set once it is connected to the engine.
        ready: Set once it can serve.
        drained: Set once it drains, and has no request left.
        samples: Its metrics, as far as they were reported.
    """

    def __init__(self, launched: Launched, render: RenderAll) -> None:
        self._launched = launched
        self._render = render
        self._stream: ControlStream | None = None
        self._report: Report | None = None
        self._reported_s = time.monotonic()
        self._answers: dict[int, asyncio.Future[list[Sample]]] = {}
        self._call_ids = itertools.count(1)
        self._rendering: set[asyncio.Task[None]] = set()
        self.joined = asyncio.Event()
        self.ready = asyncio.Event()
        self.drained = asyncio.Event()
        self.samples: Sequence[Sample] = ()

    @property
    def process(self) -> ChildProcess:
        """The process."""
        return self._launched.process

    @property
    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether it is well, and what it says."""
        if time.monotonic() - self._reported_s > SILENCE_LIMIT_S:
            return False, {"status": "blocked"}
        return (True, {"status": "ready"}) if self._report is None else self._report.health

    @property
    def failing(self) -> dict[str, Any] | None:
        """What makes all of its requests fail; None: nothing does."""
        return None if self._report is None else self._report.failing

    async def run(self, engine: bytes) -> str:
        """Follow the process until its end, and return how it ended, for people.

        Args:
            engine: Where the engine is, encoded.
        """
        self._stream = await ControlStream.of(self._launched.control, FromProcess)
        self._reported_s = time.monotonic()
        self._stream.send(Begin(msgspec.Raw(engine)))
        try:
            while (message := await self._stream.receive()) is not None:
                self._take(message)
        finally:
            self._stream.close()
            self.drained.set()
        return await asyncio.to_thread(self.process.end, EXIT_S)

    def serve(self) -> None:
        """Let it accept connections."""
        self._send(Serve())

    def drain(self) -> None:
        """Let it refuse new requests."""
        self._send(Drain())

    def stop(self) -> None:
        """Let it abort what runs, and exit."""
        self._send(StopServing())

    async def read_samples(self) -> Sequence[Sample]:
        """Return its metrics, as they are now if it answers in time."""
        call_id, answer = next(self._call_ids), asyncio.get_running_loop().create_future()
        self._answers[call_id] = answer
        self._send(ReadSamples(call_id))
        try:
            self.samples = await asyncio.wait_for(answer, ANSWER_S)
        except TimeoutError:
            pass
        finally:
            del self._answers[call_id]
        return self.samples

    def _take(self, message: FromProcess) -> None:
        self._reported_s = time.monotonic()
        match message:
            case EnteredEngine():
                self.joined.set()
            case ReadyToServe():
                self.ready.set()
            case Drained():
                self.drained.set()
            case Report():
                self._report, self.samples = message, message.samples
            case Samples():
                answer = self._answers.get(message.call_id)
                if answer is not None and not answer.done():
                    answer.set_result(message.samples)
            case Render():
                task = asyncio.create_task(self._render_for(message))
                self._rendering.add(task)
                task.add_done_callback(self._rendering.discard)

    async def _render_for(self, asked: Render) -> None:
        body, content_type = await self._render(asked.accept)
        self._send(Rendered(asked.call_id, body, content_type))

    def _send(self, message: Any) -> None:
        if self._stream is not None:
            self._stream.send(message)
