"""The processes that serve HTTP for one engine: their start, their deaths, and their end.

A process that dies is started again after a pause, which grows with each death. Its requests end
in the engine; the others go on, and new connections wait for no process in particular: all accept
from one socket.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from quire.errors import QuireError
from quire.process.children.restart_times import RestartTimes
from quire.server.group.launched import Launched
from quire.server.group.member import FrontEndMember
from quire.server.observe.merged_families import Sample
from quire.server.observe.monitor import RenderAll

logger = logging.getLogger(__name__)


class EngineDoor(Protocol):
    """Lets processes into an engine that another one has started."""

    async def open(self, number: int) -> bytes:
        """Let the engine wait for a process, and return where, encoded.

        Raises:
            EngineDeadError: The engine is dead.
        """

    def entered(self, number: int) -> None:
        """Note that a process is connected."""

    async def close(self, number: int) -> None:
        """Let the engine end the requests of a process that is gone.

        Raises:
            EngineDeadError: The engine is dead.
        """


class FrontEndGroup:
    """Processes by number, from 1 on.

    Args:
        count: Number of processes.
        on_end: Function called with the number of a process that has ended.

    Attributes:
        door: Way into the engine, to be set before `start`.
        failure: Why there is no process any more, after `failed` was set.
        failed: Set once the group cannot go on.
    """

    door: EngineDoor

    def __init__(self, count: int, on_end: Callable[[int], None]) -> None:
        self._on_end = on_end
        self._numbers = range(1, count + 1)
        self._launch: Callable[[int], Launched] = _cannot_launch
        self._launched: dict[int, Launched] = {}
        self._members: dict[int, FrontEndMember] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._retired: list[Sequence[Sample]] = []  # last metrics of processes that have died
        self._num_down = 0
        self._is_serving = self._is_draining = self._is_stopping = False
        self._render: RenderAll | None = None
        self.failed = asyncio.Event()
        self.failure: QuireError | None = None

    def launch(self, launch: Callable[[int], Launched]) -> None:
        """Launch all processes, which start while the engine does.

        Args:
            launch: Launches the process of a number; it waits for the engine then.
        """
        self._launch = launch
        for number in self._numbers:
            self._launched[number] = self._launch(number)

    async def start(self, render: RenderAll) -> None:
        """Wait until all processes are ready, and let them accept connections.

        Args:
            render: Renders the metrics of all processes.

        Raises:
            QuireError: One of them has ended.
        """
        self._render = render
        self._tasks = {each: asyncio.create_task(self._keep(each)) for each in self._numbers}
        failed = asyncio.create_task(self.failed.wait())
        ready = asyncio.create_task(self._wait_until_ready())
        await asyncio.wait({failed, ready}, return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        ready.cancel()
        if self.failure is not None:
            raise self.failure
        self._is_serving = True
        for member in self._members.values():
            member.serve()

    @property
    def members(self) -> list[FrontEndMember]:
        """The processes that are there."""
        return list(self._members.values())

    @property
    def retired(self) -> Sequence[Sequence[Sample]]:
        """The last metrics of the processes that have died."""
        return self._retired

    async def read_samples(self) -> Sequence[Sequence[Sample]]:
        """Return the metrics of each process that is there."""
        return await asyncio.gather(*(each.read_samples() for each in self.members))

    def drain(self) -> None:
        """Let all processes refuse new requests."""
        self._is_draining = True
        for member in self.members:
            member.drain()

    async def wait_until_drained(self) -> None:
        """Wait until no process that drains has a request."""
        await asyncio.gather(*(each.drained.wait() for each in self.members))

    async def stop(self, timeout_s: float) -> None:
        """End all processes.

        Args:
            timeout_s: Seconds for a process to exit by itself, before it is killed.
        """
        self._is_stopping = True
        for member in self.members:
            member.stop()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout_s)
        self.kill()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def kill(self) -> None:
        """Kill all processes that are there."""
        for launched in self._launched.values():
            launched.control.close()
            launched.process.end(0.0)
        for member in self.members:
            member.process.kill()

    async def _wait_until_ready(self) -> None:
        while len(self._members) < len(self._numbers):
            await asyncio.sleep(0.01)
        await asyncio.gather(*(each.ready.wait() for each in self.members))

    async def _keep(self, number: int) -> None:
        """Keep the process of a number running."""
        times = RestartTimes()
        while True:
            how = await self._run(number)
            if self._is_stopping:
                return
            logger.error("front end %d %s", number, how)
            if not self._is_serving:
                self._fail(f"front end {number} did not start: it {how}")
                return
            start_s = times.next_after(time.monotonic())
            if start_s is None:
                self._give_up(number)
                return
            pause_s = start_s - time.monotonic()
            logger.warning("front end %d starts again in %.1f s", number, pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self, number: int) -> str:
        """Run a process until its end; return how it ended."""
        engine = await self.door.open(number)
        launched = self._launched.pop(number, None) or self._launch(number)
        member = FrontEndMember(launched, self._all_metrics)
        self._members[number] = member
        entering = asyncio.create_task(self._enter(number, member))
        try:
            return await member.run(engine)
        except QuireError as error:
            member.process.kill()
            return f"is ended: {error}"
        finally:
            entering.cancel()
            self._on_end(number)
            del self._members[number]
            if member.samples:
                self._retired.append(member.samples)
            await self._leave(number)

    async def _leave(self, number: int) -> None:
        """Let the engine forget a process, unless the engine ends as well."""
        self.door.entered(number)
        if not self._is_stopping:
            with contextlib.suppress(QuireError):  # it is dead, too
                await self.door.close(number)

    async def _enter(self, number: int, member: FrontEndMember) -> None:
        """Let a process that was started again do what the others do."""
        await member.joined.wait()
        self.door.entered(number)
        await member.ready.wait()
        if self._is_serving:
            member.serve()
        if self._is_draining:
            member.drain()

    async def _all_metrics(self, accept: str) -> tuple[bytes, str]:
        if self._render is None:
            raise QuireError("the group has not started")
        return await self._render(accept)

    def _give_up(self, number: int) -> None:
        logger.critical("front end %d died too often, and stays down", number)
        self._num_down += 1
        if self._num_down == len(self._numbers):
            self._fail("all front ends died too often")

    def _fail(self, why: str) -> None:
        self.failure = self.failure or QuireError(why)
        self.failed.set()


def _cannot_launch(number: int) -> Launched:
    raise QuireError(f"front end {number} cannot be launched yet")
