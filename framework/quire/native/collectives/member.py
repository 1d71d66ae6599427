"""One rank's part in a group over shared memory, without tensors: calls, failures, epochs."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Sequence
from ctypes import c_char, c_int, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from quire.errors import CollectiveError, QuireError, SettingsError
from quire.machine.cores import usable_cores
from quire.native.collectives.shared_segment import SharedSegment
from quire.native.library import NativeLibrary

MAX_RANKS = 64  # as in meeting.h
CONTROL_BYTES = 16384
MAX_EPOCH = 2**24 - 1
SPIN_S = 100e-6  # before a waiting rank sleeps, if each rank has a core
TIMED_OUT, ABORTED, DIFFERENT, CLOSED = 1, 2, 3, 4
KINDS = {
    1: "all_gather",
    2: "all_reduce in float32",
    3: "all_reduce in bfloat16",
    4: "all_reduce in float16",
}


class MemberState(ctypes.Structure):
    """The C struct `Member` of the library.

    Attributes:
        ranks: Ranks of the group's members, for messages.
        noun: Name of what is counted, for messages.
    """

    _fields_: ClassVar = [
        ("base", c_void_p),
        *((name, c_int64) for name in ("rank", "size", "slot_bytes", "two_shot_bytes")),
        *((name, c_int64) for name in ("timeout_ns", "spin_ns", "epoch")),
        *((name, c_int64) for name in ("steps", "pieces", "calls")),
        *((name, c_int32) for name in ("is_busy", "is_closed")),
        *((name, c_int64) for name in ("failed_epoch", "cause", "giver_up", "count")),
        ("behind", c_uint64),
        *((name, c_int64 * MAX_RANKS) for name in ("kinds", "bytes")),
    ]
    ranks: Sequence[int]
    noun: str


class GroupMember:
    """A rank that takes part in the collectives of a segment.

    Args:
        segment: Segment of the group.
        rank: Rank in the group, from 0.
        ranks: Ranks of the group's members among all workers, for messages.
        ranks_on_node: Number of workers on this machine; with fewer cores than that, a rank that
            waits sleeps at once.
        timeout_s: Time limit of a call.
        noun: Name of what is counted, for messages.

    Raises:
        SettingsError: The segment was made for another number of ranks.

    Attributes:
        state: State of this rank, the first argument of each function of the library.
        library: Functions of the library.
    """

    def __init__(
        self,
        segment: SharedSegment,
        rank: int,
        ranks: Sequence[int],
        ranks_on_node: int,
        timeout_s: float,
        noun: str = "collective",
    ) -> None:
        if segment.layout[0] != len(ranks) or len(ranks) > MAX_RANKS:
            raise SettingsError(
                f"a group of {len(ranks)} ranks cannot use shared memory that was made for "
                f"{segment.layout[0]} ranks; at most {MAX_RANKS} ranks can share memory"
            )
        self.library = SHARED_MEMORY.load()
        self._segment = segment
        self._lock = threading.Lock()  # of abort and close
        cores, _ = usable_cores()
        state = self.state = MemberState(
            base=ctypes.addressof(c_char.from_buffer(segment.memory)),
            rank=rank,
            size=len(ranks),
            slot_bytes=segment.layout[1],
            two_shot_bytes=segment.layout[2],
            spin_ns=int(SPIN_S * 1e9) if cores >= ranks_on_node else 0,
        )
        state.ranks, state.noun = tuple(ranks), noun
        self.set_timeout(timeout_s)
        self.library.start_epoch(ctypes.byref(state), 1)

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of the calls that begin from now on."""
        self.state.timeout_ns = int(seconds * 1e9)

    def abort(self) -> None:
        """Make the calls of all ranks fail until they are reset; from any thread."""
        with self._lock:
            self.library.abort_epoch(ctypes.byref(self.state))

    def reset(self, epoch: int) -> None:
        """Start an epoch, once no rank is in a call.

        Raises:
            QuireError: The epoch is not later than the present one, or the group is closed.
        """
        state = self.state
        if state.is_closed:
            raise QuireError("a closed group of ranks cannot be reset")
        if not state.epoch < epoch <= MAX_EPOCH:
            raise QuireError(f"epoch {epoch} does not follow epoch {state.epoch} of this group")
        self.library.start_epoch(ctypes.byref(state), epoch)

    def leave(self) -> None:
        """Make the other ranks' calls fail, and those of this one; may be called twice."""
        with self._lock:
            self.library.leave(ctypes.byref(self.state))

    def close(self) -> None:
        """Leave the group, and free its memory unless tensors over it are alive."""
        self.leave()
        self._segment.close()


def raise_failure(status: int, function: object, arguments: tuple[Any, ...]) -> None:
    """Raise the error of a call that failed.

    Raises:
        CollectiveError: The status is not 0.
    """
    del function
    if status:
        raise _failure(status, arguments[0]._obj)


def _failure(status: int, state: MemberState) -> CollectiveError:
    group = f"ranks {_listed(state.ranks)}"
    if state.is_closed:
        return CollectiveError(f"the group of {group} is closed on rank {_own(state)}")
    behind = [rank for i, rank in enumerate(state.ranks) if state.behind >> i & 1]
    what = f"{state.noun} {state.count} of {group}"
    giver_up = state.ranks[state.giver_up]
    if status == DIFFERENT:
        behind, differences = _differences(state)
        text = f"the ranks call different collectives as {what}: {differences}"
    elif status == CLOSED:
        behind = [giver_up]
        text = f"rank {giver_up} has left {group} after {state.noun} {state.count}"
    elif status == ABORTED:
        text = f"{what} was aborted by rank {giver_up}{_lag(behind)}"
    else:
        text = f"{what} did not complete in time on rank {giver_up}{_lag(behind)}"
    return CollectiveError(text, ranks=behind, count=state.count)


def _lag(behind: Sequence[int]) -> str:
    if not behind:
        return "; all ranks have come to it"
    some = f"rank {behind[0]} has" if len(behind) == 1 else f"ranks {_listed(behind)} have"
    return f"; {some} not come to it"


def _differences(state: MemberState) -> tuple[list[int], str]:
    """Return the ranks that differ from most, and a description of what each one calls."""
    calls = [(state.kinds[i], state.bytes[i]) for i in range(state.size)]
    (usual, _), *_ = Counter(calls).most_common()
    odd = [rank for rank, call in zip(state.ranks, calls, strict=True) if call != usual]
    texts = [
        f"rank {rank} {KINDS.get(kind, 'no collective')} of {num_bytes:,} bytes"
        for rank, (kind, num_bytes) in zip(state.ranks, calls, strict=True)
    ]
    return odd, ", ".join(texts)


def _own(state: MemberState) -> int:
    rank: int = state.rank
    return state.ranks[rank]


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


_MEMBER = c_void_p
SHARED_MEMORY = NativeLibrary(
    "collectives in shared memory",
    Path(__file__).with_name("shared_memory.cpp"),
    {
        "all_reduce": (_MEMBER, c_void_p, c_int64, c_int),
        "all_gather": (_MEMBER, c_void_p, c_void_p, c_int64, c_int64),
        "begin_message": (_MEMBER,),
        "await_number": (_MEMBER, c_int64, c_int64),
        "publish_number": (_MEMBER, c_int64),
        "abort_epoch": (_MEMBER,),
        "start_epoch": (_MEMBER, c_int64),
        "leave": (_MEMBER,),
    },
    repeats=True,
    check=raise_failure,
)
