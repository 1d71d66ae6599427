"""A process that is one rank of groups: it takes commands from its standard input.

`RankProcesses` runs several of them; each command has a number, and its answer has the same. All
commands run in order in one thread, but `abort` and `close` at once, as a worker's channel would.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from fork_server import ForkedProcess, ForkServer, serve_forks
from model_parts import CONTEXT
from network_namespaces import Machine
from processes import path_with
from torch import Tensor

from quire.errors import CollectiveError, QuireError
from quire.interfaces.model import StageTensors
from quire.layers import VocabParallelEmbedding
from quire.native.collectives.shared_segment import SegmentHandle
from quire.native.tracing import CallTrace, trace_calls
from quire.worker.device.distributed_group import DistributedGroup
from quire.worker.device.distributed_link import DistributedLink
from quire.worker.device.group_place import GroupPlace, StageShape
from quire.worker.device.shared_memory_group import SharedMemoryGroup
from quire.worker.device.shared_memory_link import SharedMemoryLink
from quire.worker.graphs.cpu_graph_memory import GraphAllocator, GraphMemory, TracingMode

LENGTH = struct.Struct("<Q")
LOOPBACK = "127.0.0.1"
JOIN_TIMEOUT_S = 60.0
VOCAB_SIZE = 50
HIDDEN_SIZE = 6  # of the messages between stages
CPU = torch.device("cpu")
AT_ONCE = ("abort", "close", "is_in_call")


class FolderExchange:
    """An exchange through files, for the ranks of one test."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)

    def set(self, key: str, value: bytes) -> None:
        draft = self._folder / f"{os.getpid()}-{threading.get_ident()}"
        draft.write_bytes(value)
        draft.rename(self._path(key))

    def get(self, key: str, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while not self._path(key).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(key)
            time.sleep(0.002)
        return self._path(key).read_bytes()

    def _path(self, key: str) -> Path:
        return self._folder / f"key-{key.replace('/', '-')}"


def tensor(shape: Sequence[int], dtype: str, seed: int) -> Tensor:
    """Random numbers of very different sizes, so that the order of a sum shows in its bits."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(tuple(shape), generator=generator)
    values = values * 2.0 ** torch.randint(-8, 8, tuple(shape), generator=generator)
    if dtype in ("int64", "uint8", "bool"):
        values = values.abs() * 10
    return values.to(getattr(torch, dtype))


@dataclass
class Answer:
    """Answer to one command: a value, or an error."""

    value: Any = None
    error: str = ""
    code: str = ""
    ranks: Sequence[int] = ()
    count: int = 0
    seconds: float = 0.0


class RankProcesses:
    """Several ranks. Use it in a `with` block, whose end kills them.

    Args:
        count: Number of ranks.
        folder: Folder in which they exchange addresses.
        machines: Machine of each rank; by default, this one.
    """

    def __init__(self, count: int, folder: Path, machines: Sequence[Machine] = ()) -> None:
        folder.mkdir(exist_ok=True)
        self._machines = machines
        self.size = count  # of the group that was joined last
        self._folder = folder
        self._ids = itertools.count()
        self.signalled: set[int] = set()
        here = machines[:count] or [None]
        self._servers = [_start_server(machine) for machine in here]
        self.processes = [self._start(rank) for rank in range(count)]
        self._answers: list[dict[int, Answer]] = [{} for _ in range(count)]

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.end()
        for server in self._servers:
            server.close()

    def _start(self, rank: int) -> ForkedProcess:
        address = self._machines[rank].address if self._machines else LOOPBACK
        return self._servers[rank % len(self._servers)].start(f"{address} {self._folder}")

    def revive(self) -> None:
        """Start the ranks again that a signal has ended or stopped, and end all calls."""
        for rank in self.signalled:
            self.processes[rank].end()
            self.processes[rank] = self._start(rank)
        self.signalled.clear()
        self.size = len(self.processes)
        self.values("close")

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank."""
        self.signalled.add(rank)
        self.processes[rank].send_signal(number)

    def begin(self, rank: int, name: str, *arguments: Any) -> int:
        """Send a command; its answer is `answer`'s."""
        number = next(self._ids)
        frame = msgspec.msgpack.encode((number, name, arguments))
        stdin = self.processes[rank].stdin
        stdin.write(LENGTH.pack(len(frame)) + frame)
        stdin.flush()
        return number

    def answer(self, rank: int, number: int, timeout_s: float = 60.0) -> Answer:
        """Wait for the answer to a command."""
        stdout = self.processes[rank].stdout
        while number not in self._answers[rank]:
            readable, _, _ = select.select([stdout], [], [], timeout_s)
            assert readable, f"rank {rank} has not answered in {timeout_s} s"
            frame = _frame(stdout.fileno())
            assert frame is not None, f"rank {rank} has died"
            its_number, answer = msgspec.msgpack.decode(frame, type=tuple[int, Answer])
            self._answers[rank][its_number] = answer
        return self._answers[rank].pop(number)

    def all(self, name: str, *arguments: Any) -> list[Answer]:
        """Send a command to all ranks of the group, and return their answers."""
        numbers = [self.begin(rank, name, *arguments) for rank in range(self.size)]
        return [self.answer(rank, number) for rank, number in enumerate(numbers)]

    def wait_in_call(self, rank: int, number: int) -> None:
        """Wait until a rank waits for others in a command's collective, or has ended it."""
        while not self.answer(rank, self.begin(rank, "is_in_call")).value:
            if number in self._answers[rank]:
                return
            time.sleep(0.01)

    def values(self, name: str, *arguments: Any) -> list[Any]:
        """The same, for commands that succeed."""
        answers = self.all(name, *arguments)
        assert not any(answer.error for answer in answers), answers
        return [answer.value for answer in answers]

    def join(self, kind: str, key: str, *options: Any, size: int | None = None) -> None:
        """Make the first ranks join a group, and use it from now on."""
        self.size = size or len(self.processes)
        begun = [
            self.begin(rank, "join", kind, key, rank, self.size, *options)
            for rank in range(self.size)
        ]
        answers = [self.answer(rank, number) for rank, number in enumerate(begun)]
        assert not any(answer.error for answer in answers), answers


def _start_server(machine: Machine | None) -> ForkServer:
    path = path_with(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    prefix = () if machine is None else machine.command()
    return ForkServer(Path(__file__), environment, prefix)


class Rank:
    """The commands of one rank."""

    def __init__(self, folder: Path, address: str) -> None:
        self._exchange = FolderExchange(folder)
        self._address = address
        self._group: Any = None
        self._calls = CallTrace()
        self._ids = self._replayed = torch.empty(0)

    def join(self, kind: str, key: str, rank: int, size: int, *options: Any) -> None:
        place = GroupPlace(
            rank=rank, ranks=range(size), ranks_on_node=size, timeout_s=JOIN_TIMEOUT_S
        )
        makers: dict[str, Callable[..., Any]] = {
            "shared": self._shared,
            "gloo": self._gloo,
            "shared-link": self._shared_link,
            "gloo-link": self._gloo_link,
        }
        if self._group is not None:
            self._group.close()
        self._group = makers[kind](key, place, *options)

    def _shared(self, key: str, place: GroupPlace, *sizes: int) -> SharedMemoryGroup:
        if not sizes:
            return SharedMemoryGroup.join(self._exchange, key, place)
        if place.rank:
            handle = msgspec.msgpack.decode(
                self._exchange.get(key, JOIN_TIMEOUT_S), type=SegmentHandle
            )
            return SharedMemoryGroup.attach(handle, place)
        group = SharedMemoryGroup.create(place, *sizes)
        self._exchange.set(key, msgspec.msgpack.encode(group.handle))
        return group

    def _gloo(
        self, key: str, place: GroupPlace, address: str = "", timeout_s: float = JOIN_TIMEOUT_S
    ) -> DistributedGroup:
        place = replace(place, timeout_s=timeout_s)
        return DistributedGroup.join(self._exchange, key, place, CPU, address or self._address)

    def _shared_link(self, key: str, place: GroupPlace, *sizes: int) -> SharedMemoryLink:
        return SharedMemoryLink.join(self._exchange, key, place, _stage_shape(*sizes))

    def _gloo_link(self, key: str, place: GroupPlace, *sizes: int) -> DistributedLink:
        shape = _stage_shape(*sizes)
        return DistributedLink.join(self._exchange, key, place, shape, CPU, self._address)

    def send(self, messages: Sequence[tuple[int, int, int]]) -> None:
        """Send messages, each of so many tokens and tensors from a seed."""
        for num_tokens, num_parts, seed in messages:
            parts = list(stage_tensors(num_tokens, num_parts, seed))
            self._group.send(StageTensors(*parts, *[None] * (2 - num_parts)))
            for part in parts:
                part.fill_(-1)  # as the next step may do

    def receive(self, lengths: Sequence[int]) -> list[list[bytes]]:
        received = [self._group.receive(num_tokens) for num_tokens in lengths]
        return [
            [_bytes(part) for part in (one.hidden_states, one.residual) if part is not None]
            for one in received
        ]

    def listeners(self) -> list[str]:
        """Addresses that this process listens on, as in /proc/net/tcp."""
        sockets = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(f"/proc/self/fd/{name}"))
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        ]
        return [
            row[1].split(":")[0]
            for row in rows
            if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
        ]

    def all_reduce(self, shape: Sequence[int], dtype: str, seed: int) -> bytes:
        return _bytes(self._group.all_reduce(tensor(shape, dtype, seed + self._group.rank)))

    def all_gather(self, shape: Sequence[int], dtype: str, seed: int, dim: int) -> bytes:
        return _bytes(self._group.all_gather(tensor(shape, dtype, seed + self._group.rank), dim))

    def all_reduce_special(self) -> bytes:
        """Infinities and quiet NaNs with a payload of this rank, and sums of both."""
        nan = 0x7FC00000 + self._group.rank
        words = [nan, 0x7F800000, -0x800000, 0, -(2**31), nan, 0x7F7FFFFF] * 40
        rotated = words[self._group.rank :] + words[: self._group.rank]
        values = torch.tensor(rotated, dtype=torch.int32).view(torch.float32)
        return _bytes(self._group.all_reduce(values))

    def many(self, calls: Sequence[tuple[str, list[Any]]]) -> list[bytes]:
        """Several of the above, one directly after the other."""
        return [getattr(self, name)(*arguments) for name, arguments in calls]

    def trace(self) -> str | None:
        """Trace what a decode step does with its group; returns why it cannot be replayed."""
        embedding = VocabParallelEmbedding(VOCAB_SIZE, 8, replace(CONTEXT, tp=self._group))
        embedding.load_weight("weight", tensor((VOCAB_SIZE, 8), "float32", 0), "")
        self._ids = torch.zeros(5, dtype=torch.int64)
        memory = GraphAllocator(GraphMemory())
        with torch.inference_mode(), trace_calls() as self._calls, TracingMode(memory, self._calls):
            self._replayed = self._group.all_gather(embedding(self._ids))
        return self._calls.reason

    def replay(self, ids: Sequence[int]) -> bytes:
        self._ids.copy_(torch.tensor(ids))
        with torch.inference_mode():
            self._calls.replay()
        return _bytes(self._replayed)

    def set_timeout(self, seconds: float) -> None:
        self._group.set_timeout(seconds)

    def abort(self) -> None:
        self._group.abort()

    def close(self) -> None:
        if self._group is not None:
            self._group.close()

    def is_in_call(self) -> bool:
        return bool(self._group._member.state.is_busy)

    def reset(self, epoch: int) -> None:
        self._group.reset(epoch)

    def fail(self) -> None:
        raise ValueError("this rank fails")

    def open_files(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    def mappings(self) -> int:
        return Path("/proc/self/maps").read_text().count("memfd:quire-ranks")


def main(argument: str) -> None:
    torch.set_num_threads(1)
    address, _, folder = argument.partition(" ")
    rank, lock = Rank(Path(folder), address), threading.Lock()
    output = os.dup(1)
    os.dup2(2, 1)  # nothing that is printed is taken for an answer
    tasks: queue.SimpleQueue[tuple[int, str, list[Any]]] = queue.SimpleQueue()

    def run(number: int, name: str, arguments: list[Any]) -> None:
        answer, started = Answer(), time.monotonic()
        try:
            answer.value = getattr(rank, name)(*arguments)
        except Exception as error:  # noqa: BLE001 (told to the test)
            answer.error = f"{type(error).__name__}: {error}"
            if isinstance(error, QuireError):
                answer.code = error.code
            if isinstance(error, CollectiveError):
                answer.ranks, answer.count = error.ranks, error.count
        answer.seconds = time.monotonic() - started
        frame = msgspec.msgpack.encode((number, answer))
        with lock:
            os.write(output, LENGTH.pack(len(frame)))
            view = memoryview(frame)
            while view:
                view = view[os.write(output, view) :]

    def serve() -> None:
        while True:
            run(*tasks.get())

    threading.Thread(target=serve, daemon=True).start()
    while (frame := _frame(0)) is not None:
        number, name, arguments = msgspec.msgpack.decode(frame)
        if name in AT_ONCE:
            run(number, name, arguments)
        else:
            tasks.put((number, name, arguments))
    os._exit(0)


def _frame(fd: int) -> bytes | None:
    head = _read(fd, LENGTH.size)
    return None if head is None else _read(fd, LENGTH.unpack(head)[0])


def _read(fd: int, size: int) -> bytes | None:
    parts = b""
    while len(parts) < size:
        part = os.read(fd, size - len(parts))
        if not part:
            return None
        parts += part
    return parts


def stage_tensors(num_tokens: int, num_parts: int, seed: int) -> Tensor:
    """The tensors of a message, `[parts, T, hidden]`."""
    return tensor((num_parts, num_tokens, HIDDEN_SIZE), "bfloat16", seed)


def _stage_shape(max_num_tokens: int, num_messages: int) -> StageShape:
    return StageShape(
        hidden_size=HIDDEN_SIZE,
        dtype=torch.bfloat16,
        max_num_tokens=max_num_tokens,
        num_messages=num_messages,
    )


def _bytes(values: Tensor) -> bytes:
    return bytes(values.contiguous().view(torch.uint8).numpy())


if __name__ == "__main__":
    serve_forks(int(sys.argv[1]), main)
