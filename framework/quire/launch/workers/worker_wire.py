"""Messages between the engine and the processes of its workers.

engine -> worker   WorkerConfig on its standard input; then LoadWeights, Allocate, Execute, Sample,
                   Launch, Run, KeyValue and Stop; Halt and Resume after a failed step
worker -> engine   Joined or WorkerRefused; Loaded; Allocated; one Completed or StepFailed per step;
                   Halted; Resumed; Returned; WorkerFailed; SetKey and GetKey, with which ranks find
                   each other
"""

from typing import Any

import msgspec

from quire.config import Settings
from quire.messages import (
    ErrorReport,
    RankPlace,
    RowBitmask,
    StepPlan,
    StepResult,
    WorkerControl,
    WorkerInfo,
)
from quire.process.error_message import ErrorMessage


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration with which the process of a rank is started.

    Attributes:
        settings: Settings as given by the user, without the server's.
        address: Socket address on which the engine listens.
        rank: Rank of the worker.
        log_level: Log level of the engine.
        key: Secret with which to connect; None on a socket that only this user may access.
    """

    settings: Settings
    address: str
    rank: int
    log_level: int
    key: str | None = None

    def __repr__(self) -> str:
        """Return a description without the key."""
        return f"WorkerConfig(rank={self.rank}, address={self.address!r})"


class Joined(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The process of a rank has composed, and waits to load.

    Attributes:
        rank: Rank of the worker.
        node: Name of its machine.
        pid: Process id there.
        choices: What it chose, a line for each.
        stack_fd: File descriptor of the memory to which it writes its stack on `STACK_SIGNAL`.
    """

    rank: int
    node: str
    pid: int
    choices: list[str]
    stack_fd: int


class WorkerRefused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The process of a rank cannot start, and ends."""

    rank: int
    error: ErrorMessage


class LoadWeights(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Join the other ranks, and load the weights.

    Attributes:
        places: Place of each rank, in order.
    """

    places: list[RankPlace]


class Loaded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The weights are loaded."""

    info: WorkerInfo


class Allocate(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Plan the KV cache from the memory that each rank has left, and allocate this stage's."""

    kv_bytes: list[int]


class Allocated(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The KV cache is allocated, and steps can run.

    Attributes:
        num_blocks: Number of blocks of the plan, which all ranks must share.
        max_model_len: Largest number of tokens of a request, likewise.
    """

    num_blocks: int
    max_model_len: int


class Execute(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Launch the forward pass of a step."""

    plan: StepPlan


class Sample(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Sample the tokens of a launched step, and send its result."""

    plan_id: int
    masks: list[RowBitmask]


class Launch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Launches the forward pass and the sampling of a step."""

    plan: StepPlan
    masks: list[RowBitmask]


class Completed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The result of a step on one rank."""

    result: StepResult


class StepFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A step failed on one rank, which computes nothing until `Resume`; its transfers go on.

    Attributes:
        plan_id: Id of the step.
        report: Error that a client may read; None if the rank only waited for another one.
        slots: Errors of the slots that are known to have failed.
        message: What happened, for the operator.
    """

    plan_id: int
    report: ErrorReport | None
    slots: dict[int, ErrorReport]
    message: str


class Halt(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Compute nothing until `Resume`, and answer `Halted`; transfers of a KV store go on."""


class Halted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The rank is in no step.

    Attributes:
        can_resume: Whether its groups can be used again.
    """

    can_resume: bool


class Resume(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Reset the groups of ranks, answer `Resumed`, and compute the steps that follow.

    Attributes:
        epoch: Number of the reset, greater than that of each earlier one.
    """

    epoch: int


class Resumed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The groups of the rank are reset."""


class Run(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Run a command between two steps."""

    call_id: int
    command: WorkerControl


class Returned(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Result of a command, or its error."""

    call_id: int
    value: Any
    error: ErrorMessage | None = None


class SetKey(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Publish a value under a key for the other ranks."""

    key: str
    value: bytes


class GetKey(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ask for the value of a key, which another rank will publish."""

    key: str


class KeyValue(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The value of a key that a rank has asked for."""

    key: str
    value: bytes


class WorkerFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker failed, and its process ends."""

    error: ErrorMessage


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Shut down and exit."""


ToWorker = (
    LoadWeights | Allocate | Execute | Sample | Launch | Halt | Resume | Run | KeyValue | Stop
)
FromWorker = (
    Joined
    | WorkerRefused
    | Loaded
    | Allocated
    | Completed
    | StepFailed
    | Halted
    | Resumed
    | Returned
    | SetKey
    | GetKey
    | WorkerFailed
)
