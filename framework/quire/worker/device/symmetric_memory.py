"""All-reduce of small tensors between the GPUs of one node, in memory that all of them can read.

Each rank has a buffer of torch's symmetric memory, which the GPUs of the others read and write. One
kernel waits for the others, adds up and waits again, in less time than NCCL for up to some MiB. All
ranks have the same bits:

    one_shot    each rank reads the buffers of all ranks, and adds them up in rank order
    two_shot    each rank adds up one part in rank order, and writes the sum to all buffers
    multimem    the switch adds up each part for one rank, which writes the sum to all buffers

The first two round narrow dtypes after each addition; the switch adds them up in float32. The order
of its sums is not known. The kernels can be captured: they use nothing of the host.

A kernel that waits for a rank that has died waits until its own process ends. So the group cannot
be reset, and the engine ends its workers at the step's time limit, as it does with NCCL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor

from quire.compose.choices.all_reduce_choice import SYMMETRIC_BYTES
from quire.layers.parallel import TensorParallelGroup
from quire.worker.device.channel_store import ChannelStore
from quire.worker.device.group_place import Exchange, GroupPlace
from quire.worker.graphs.agreement import all_agree

Kernel = Literal["one_shot", "two_shot", "multimem"]

DTYPES = (torch.float32, torch.bfloat16)  # of torch's kernels
ALIGNMENT = 16  # bytes; torch's kernels take less, and are slower then
ONE_SHOT_BYTES = 2**19  # up to this size one meeting is faster than two
OPERATORS = ("one_shot_all_reduce_copy", "two_shot_all_reduce_", "multimem_all_reduce_")
JOIN_TIMEOUT_S = 60.0  # of ranks that have all agreed to join

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDevices:
    """GPUs of a group's ranks, as one rank sees them.

    Attributes:
        num_nodes: Number of nodes that the ranks are on.
        devices: Index of each rank's GPU on its node.
        own: Index of this rank's GPU.
        num_visible: Number of GPUs that this process can use.
        can_access: Function that says whether this rank's GPU can read the memory of another one.
    """

    num_nodes: int
    devices: Sequence[int]
    own: int
    num_visible: int
    can_access: Callable[[int, int], bool]

    def unavailable_reason(self) -> str | None:
        """Return why the GPUs cannot share memory; None if they can, as far as this rank sees."""
        if self.num_nodes > 1:
            return f"the ranks are on {self.num_nodes} nodes"
        if len(set(self.devices)) < len(self.devices) or max(self.devices) >= self.num_visible:
            return "this rank's process cannot use the GPUs of the others (CUDA_VISIBLE_DEVICES)"
        for device in self.devices:
            if device != self.own and not self.can_access(self.own, device):
                return f"GPU {self.own} cannot access the memory of GPU {device}"
        return None


class SymmetricMemory:
    """Buffer of one rank that the other ranks of its group read and write.

    Args:
        buffer: Symmetric memory, `[num_bytes]` uint8; the same size on all ranks.
        group: Group that shares it, as torch knows it.

    Attributes:
        has_multicast: Whether the switch can add up, on all ranks.
    """

    def __init__(self, buffer: Tensor, group: TorchGroup, *, has_multicast: bool) -> None:
        self.has_multicast = has_multicast
        self._buffer: Tensor | None = buffer
        self._group = group

    @classmethod
    def connect(cls, exchange: Exchange, key: str, place: GroupPlace, device: torch.device) -> Self:
        """Allocate the buffer, and map those of the other ranks, which call this as well.

        Raises:
            RuntimeError: torch cannot do that on this machine.
            TimeoutError: The others do not come in time.
        """
        from torch._C._distributed_c10d import _SymmetricMemory

        group = TorchGroup(exchange, key, place)
        try:
            memory = _SymmetricMemory.empty_strided_p2p(
                (SYMMETRIC_BYTES,), (1,), torch.uint8, device, group.name
            )
            handle = _SymmetricMemory.rendezvous(memory, group.name)
        except BaseException:
            group.close()
            raise
        return cls(memory, group, has_multicast=bool(handle.multicast_ptr))

    def kernel_for(self, x: Tensor) -> Kernel | None:
        """Return the kernel that adds up a tensor; None if it is for the group itself."""
        return kernel_for(x.nbytes, x.dtype, has_multicast=self.has_multicast)

    def all_reduce(self, x: Tensor, kernel: Kernel) -> Tensor:
        """Add up a contiguous tensor over all ranks; `x` may be written in place.

        Raises:
            RuntimeError: The memory is closed.
        """
        if self._buffer is None:
            raise RuntimeError("the symmetric memory of this group is closed")
        flat = x.view(-1)
        shared = self._buffer.view(x.dtype)[: x.numel()]
        if kernel == "one_shot":
            if flat.data_ptr() % ALIGNMENT or flat.storage_offset() * x.itemsize % ALIGNMENT:
                flat = flat.clone()
            return self._operator(OPERATORS[0])(shared, flat).view(x.shape)
        shared.copy_(flat)
        self._operator(OPERATORS[1] if kernel == "two_shot" else OPERATORS[2])(shared)
        return flat.copy_(shared).view(x.shape)

    def close(self) -> None:
        """Let go of the memory, once no graph uses it."""
        if self._buffer is not None:
            self._buffer = None
            self._group.close()

    def _operator(self, name: str) -> Callable[..., Tensor]:
        operator = getattr(torch.ops.symm_mem, name)
        return lambda *tensors: operator(*tensors, "sum", self._group.name)


class TorchGroup:
    """Name under which torch's symmetric memory finds the ranks of a group, and their store.

    It has no connections: torch exchanges addresses through the store, and files of memory through
    sockets in the directory for temporary files.

    Args:
        exchange: Exchange of the launch.
        key: Name of the group, unique in the launch.
        place: Place of this rank.

    Attributes:
        name: Name of the group, unique in this process.
    """

    def __init__(self, exchange: Exchange, key: str, place: GroupPlace) -> None:
        from torch._C._distributed_c10d import _register_process_group

        name: Any = f"quire: {key}"
        self.name: str = name
        timeout_s = min(place.timeout_s, JOIN_TIMEOUT_S)
        # torch keeps no reference to a store in Python, and only a weak one to the group.
        self._store = ChannelStore(exchange, f"{key}, symmetric memory", timeout_s)
        self._group = dist.ProcessGroup(self._store, place.rank, place.size)
        self._group._set_group_name(name)
        _register_process_group(name, self._group)

    def close(self) -> None:
        """Make torch forget the group."""
        from torch._C._distributed_c10d import _unregister_process_group

        _unregister_process_group(self.name)  # type: ignore[arg-type]


def kernel_for(num_bytes: int, dtype: torch.dtype, *, has_multicast: bool) -> Kernel | None:
    """Return the kernel that adds up a tensor; None if NCCL does.

    The answer depends on nothing that differs between the ranks of a group.
    """
    if dtype not in DTYPES or num_bytes % ALIGNMENT or not 0 < num_bytes <= SYMMETRIC_BYTES:
        return None
    if num_bytes <= ONE_SHOT_BYTES:
        return "one_shot"
    return "multimem" if has_multicast else "two_shot"


def torch_unavailable_reason() -> str | None:
    """Return why this version of torch has no symmetric memory as it is used here."""
    try:
        from torch._C import _distributed_c10d

        for name in ("_SymmetricMemory", "_register_process_group", "_unregister_process_group"):
            getattr(_distributed_c10d, name)
        for name in OPERATORS:
            getattr(torch.ops.symm_mem, name)
    except (ImportError, AttributeError) as error:
        return f"torch {torch.__version__} does not have it as it is used here ({error})"
    return None


def join_symmetric_memory(
    group: TensorParallelGroup,
    device: torch.device,
    reason: str | None,
    connect: Callable[[], SymmetricMemory],
) -> SymmetricMemory | None:
    """Join the symmetric memory of a group, if all of its ranks can; all of them call this.

    Args:
        group: Group, by which the ranks agree.
        device: Device of the group's tensors.
        reason: Reason why this rank cannot; None if it can.
        connect: Function that connects this rank to the others.
    """
    if not all_agree(group, reason is None, device):
        _log_reason(reason)
        return None
    memory = None
    try:
        memory = connect()
    except (RuntimeError, TimeoutError) as error:
        logger.debug("joining symmetric memory failed", exc_info=True)
        reason = str(error)
    if not all_agree(group, memory is not None, device) or memory is None:
        if memory is not None:
            memory.close()
        _log_reason(reason)
        return None
    memory.has_multicast = all_agree(group, memory.has_multicast, device)
    logger.info(
        "all-reduces of up to %d MiB use symmetric memory, %s multicast",
        SYMMETRIC_BYTES // 2**20,
        "with" if memory.has_multicast else "without",
    )
    return memory


def _log_reason(reason: str | None) -> None:
    logger.info(
        "all-reduces use NCCL and no symmetric memory: %s", reason or "another rank cannot use it"
    )
