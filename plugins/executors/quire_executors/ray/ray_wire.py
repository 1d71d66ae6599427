"""Messages between the engine and the process of Ray's driver.

engine -> driver   Reserve; then StartAgents; Release, or the end of the engine, ends the driver
driver -> engine   Reserved or Refused; AgentEnded once for each rank whose agent has ended
"""

from typing import Any, TypeVar

import msgspec

from quire.errors import EngineDeadError

T = TypeVar("T")


class Reserve(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Connect to Ray, and reserve a device for each rank.

    Attributes:
        num_ranks: Number of ranks.
        tp_size: Number of consecutive ranks that should share a machine.
        needs_gpus: Whether each rank needs a GPU; else CPUs are reserved.
        num_threads: CPU threads of each rank; None: as many as all ranks can have.
    """

    num_ranks: int
    tp_size: int
    needs_gpus: bool
    num_threads: int | None


class Reserved(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Each rank has its device.

    Attributes:
        address: IP address of the engine's machine, as Ray's nodes reach it.
        nodes: Name of the machine of each rank, with its address.
        head: Host and port of Ray's head.
    """

    address: str
    nodes: list[str]
    head: str


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The ranks cannot be placed, and the driver ends.

    Attributes:
        is_capacity: Whether resources are missing; else Ray cannot be used.
        message: The reason, for people.
    """

    is_capacity: bool
    message: str


class StartAgents(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Start `quire worker` for each rank.

    Attributes:
        address: Host and port of the engine.
        key: Secret with which the workers join.
    """

    address: str
    key: str


class AgentEnded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The `quire worker` of a rank has ended, or its actor has.

    Attributes:
        rank: The rank.
        how: What ended and how, for people.
    """

    rank: int
    how: str


class Release(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """End all actors, and leave Ray."""


ToDriver = Reserve | StartAgents | Release
FromDriver = Reserved | Refused | AgentEnded


def encode(message: Any) -> bytes:
    """Encode a message."""
    return msgspec.msgpack.encode(message)


def decode(frame: bytes, kind: type[T]) -> T:
    """Decode a message.

    Raises:
        EngineDeadError: The bytes are not such a message.
    """
    try:
        return msgspec.msgpack.decode(frame, type=kind)
    except msgspec.MsgspecError as error:
        raise EngineDeadError(
            f"{len(frame)} bytes between the engine and Ray's driver are no message: {error}"
        ) from error
