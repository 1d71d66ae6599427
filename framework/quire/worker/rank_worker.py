"""Construction of the worker of a rank: its groups of ranks, its stage and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from quire.compose.composition import Composition
from quire.config import Settings
from quire.errors import CapacityError
from quire.interfaces.executor import Worker
from quire.layers.parallel import RankGroup, SingleDevice, StageLink, TensorParallelGroup
from quire.messages import RankPlace
from quire.worker.device.distributed_group import DistributedGroup
from quire.worker.device.distributed_link import DistributedLink
from quire.worker.device.group_place import Exchange, GroupPlace, StageShape
from quire.worker.device.shared_memory_group import SharedMemoryGroup
from quire.worker.device.shared_memory_link import SharedMemoryLink
from quire.worker.device.symmetric_memory import (
    PeerDevices,
    SymmetricMemory,
    join_symmetric_memory,
    torch_unavailable_reason,
)
from quire.worker.parts import WorkerParts
from quire.worker.stage import Stage
from quire.worker.worker import TORCH_DTYPES, ModelWorker, torch_device


@dataclass(frozen=True, slots=True)
class RankWorker:
    """Worker of a rank, with the groups of ranks that it computes with.

    Attributes:
        worker: The worker.
        groups: Tensor-parallel group, and links to the pipeline stages beside it.
    """

    worker: Worker
    groups: Sequence[RankGroup]

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of calls between ranks."""
        for group in self.groups:
            group.set_timeout(seconds)

    def abort(self) -> None:
        """Make the calls of ranks that wait for this one fail, where they can go on afterwards.

        Where they cannot, the engine decides: if all ranks failed alike, none waits for another.
        """
        for group in self._resettable:
            group.abort()

    @property
    def can_resume(self) -> bool:
        """Whether the groups can be used again after a rank has waited for another in vain."""
        return len(self._resettable) == len(self.groups)

    @property
    def _resettable(self) -> list[RankGroup]:
        return [group for group in self.groups if group.can_reset]

    def resume(self, epoch: int) -> None:
        """Make the groups usable again, once no rank is in a call."""
        for group in self._resettable:
            group.reset(epoch)

    def shutdown(self) -> None:
        """Release all resources of the worker, and leave the groups."""
        self.worker.shutdown()
        for group in self.groups:
            group.close()


def make_worker(
    settings: Settings,
    parts: WorkerParts,
    rank: int,
    exchange: Exchange,
    places: Sequence[RankPlace],
) -> RankWorker:
    """Build the worker of a rank, connected to the ranks that it computes with.

    Args:
        settings: Settings of the engine.
        parts: Parts that compute, with the composition that has the grid.
        rank: Rank of the worker.
        exchange: Exchange through which the ranks find each other.
        places: Place of each rank, in order.

    Raises:
        CapacityError: There is no such device.
        CollectiveError: Other ranks do not come in time, or cannot be reached.
        SettingsError: The address of this rank is not one of its machine's interfaces.
    """
    composition = parts.composition
    ranks = Ranks(settings, composition, rank, exchange, places)
    if torch_device(composition.device).type == "cuda":
        _check_gpu(rank, places[rank])
        torch.cuda.set_device(ranks.device)
    group, previous, following = ranks.group(), ranks.link(ranks.stage - 1), ranks.link(ranks.stage)
    stage = Stage(
        index=ranks.stage,
        count=composition.grid.pp_size,
        layers=composition.stage_layers[ranks.stage],
        previous=previous,
        next=following,
    )
    links = [link for link in (previous, following) if link is not None]
    worker = ModelWorker(settings, parts, group, stage, ranks.ranks_on_node)
    return RankWorker(worker, [group, *links])


def _check_gpu(rank: int, place: RankPlace) -> None:
    """Check that the GPU of a rank is there.

    Raises:
        CapacityError: It is not.
    """
    if place.device >= (count := torch.cuda.device_count()):
        raise CapacityError(
            f"rank {rank} on {place.node} is to use GPU {place.device}, and its process can use "
            f"{count} of that machine, counted from 0; start fewer ranks there, or let them use "
            "more (CUDA_VISIBLE_DEVICES)"
        )


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that one rank computes with.

    Attributes:
        settings: Settings of the engine.
        composition: Composition of the engine, with the grid.
        rank: The rank.
        exchange: Exchange through which the ranks find each other.
        places: Place of each rank, in order.
    """

    settings: Settings
    composition: Composition
    rank: int
    exchange: Exchange
    places: Sequence[RankPlace]

    @property
    def stage(self) -> int:
        """Pipeline stage of the rank."""
        return self.composition.grid.place(self.rank)[0]

    def group(self) -> TensorParallelGroup:
        """Join the tensor-parallel group of the stage."""
        tp_size = self.composition.grid.tp_size
        if tp_size == 1:
            return SingleDevice()
        first = self.stage * tp_size
        place, key = self._place(range(first, first + tp_size)), f"group of stage {self.stage}"
        if self._can_share_memory(place.ranks):
            return SharedMemoryGroup.join(self.exchange, key, place)
        group = DistributedGroup.join(self.exchange, key, place, self.device, self._own.address)
        if self.device.type == "cuda" and self.settings.parallel.symmetric_memory:
            connect = partial(SymmetricMemory.connect, self.exchange, key, place, self.device)
            reason = self._symmetric_memory_unavailable_reason(place.ranks)
            memory = join_symmetric_memory(group, self.device, reason, connect)
            group.use_symmetric_memory(memory)
        return group

    def link(self, stage: int) -> StageLink | None:
        """Join the link from a stage to the next one, between ranks of one tensor-parallel rank.

        Returns:
            None if one of the two stages does not exist.
        """
        grid = self.composition.grid
        if not 0 <= stage < grid.pp_size - 1:
            return None
        sender = stage * grid.tp_size + grid.place(self.rank)[1]
        place = self._place(range(sender, sender + 2 * grid.tp_size, grid.tp_size))
        key, shape = f"link from rank {sender}", self._stage_shape()
        if self._can_share_memory(place.ranks):
            return SharedMemoryLink.join(self.exchange, key, place, shape)
        return DistributedLink.join(
            self.exchange, key, place, shape, self.device, self._own.address
        )

    @property
    def device(self) -> torch.device:
        """Device of the rank; each rank on a node has a GPU."""
        if self.composition.device != "cuda":
            return torch.device(self.composition.device)
        return torch.device("cuda", self._own.device)

    @property
    def ranks_on_node(self) -> int:
        """Number of ranks on the node of this one, itself included."""
        return sum(place.node_id == self._own.node_id for place in self.places)

    @property
    def _own(self) -> RankPlace:
        return self.places[self.rank]

    def _symmetric_memory_unavailable_reason(self, ranks: Sequence[int]) -> str | None:
        """Return why this rank cannot share memory with the others of its group."""
        choice = self.composition.symmetric_memory  # of this rank's machine
        if not choice.value:
            return choice.reason
        return torch_unavailable_reason() or self._peers(ranks).unavailable_reason()

    def _peers(self, ranks: Sequence[int]) -> PeerDevices:
        """Return the GPUs of a group's ranks, as this rank sees them."""
        places = [self.places[rank] for rank in ranks]
        return PeerDevices(
            num_nodes=len({place.node_id for place in places}),
            devices=[place.device for place in places],
            own=self._own.device,
            num_visible=torch.cuda.device_count(),
            can_access=torch.cuda.can_device_access_peer,
        )

    def _can_share_memory(self, ranks: Sequence[int]) -> bool:
        """Whether ranks compute on the CPU of one node; the same on each of them."""
        nodes = {self.places[rank].node_id for rank in ranks}
        return self.composition.device == "cpu" and len(nodes) == 1

    def _place(self, ranks: range) -> GroupPlace:
        return GroupPlace(
            rank=ranks.index(self.rank),
            ranks=ranks,
            # Those of all replicas: a rank that spins takes the core of another one.
            ranks_on_node=self.ranks_on_node * self.settings.parallel.data_parallel_size,
            timeout_s=self.settings.parallel.worker_start_timeout_s,
        )

    def _stage_shape(self) -> StageShape:
        return StageShape(
            hidden_size=self.composition.description.hidden_size,
            dtype=TORCH_DTYPES[self.composition.hidden_dtype],
            max_num_tokens=self.settings.scheduler.max_num_batched_tokens,
            num_messages=self.composition.grid.pp_size,
        )
