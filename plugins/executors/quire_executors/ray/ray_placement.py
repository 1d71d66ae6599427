"""Which rank goes to which node of a Ray cluster, from what is free there; without Ray.

The ranks of a tensor-parallel group stay on one node if any node has room for them, and the first
ranks are on the engine's own node if they fit there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.errors import CapacityError


@dataclass(frozen=True, slots=True)
class NodeResources:
    """A node of the cluster, and how much it has of the resource that ranks need.

    Attributes:
        node_id: Ray's id of the node.
        name: Host name.
        address: IP address.
        total: GPUs or CPUs of the node.
        free: How many of them are not reserved.
    """

    node_id: str
    name: str
    address: str
    total: float
    free: float

    def room(self, amount: int) -> int:
        """Return the number of ranks that fit, each of which takes an amount."""
        return int(self.free // amount)


@dataclass(frozen=True, slots=True)
class Placement:
    """The node of each rank, and what each rank reserves there."""

    nodes: tuple[NodeResources, ...]
    amount: int

    @property
    def thread_limit(self) -> dict[str, str]:
        """The variable that limits the CPU threads of a rank to those that it reserves.

        The node may have more, which others use.
        """
        return {"OMP_NUM_THREADS": str(self.amount)}


def place_on_gpus(
    nodes: Sequence[NodeResources], num_ranks: int, tp_size: int, own_id: str
) -> Placement:
    """Give each rank a GPU.

    Args:
        nodes: Nodes with their GPUs.
        num_ranks: Number of ranks.
        tp_size: Size of a tensor-parallel group.
        own_id: Id of the engine's node.

    Raises:
        CapacityError: Too few GPUs are free; the message has those of each node.
    """
    _check_room(nodes, num_ranks, 1, "GPU")
    return Placement(_placed(nodes, num_ranks, tp_size, own_id, 1), 1)


def place_on_cpus(
    nodes: Sequence[NodeResources],
    num_ranks: int,
    tp_size: int,
    own_id: str,
    num_threads: int | None,
) -> Placement:
    """Give each rank as many CPUs as it has threads.

    Args:
        nodes: Nodes with their CPUs.
        num_ranks: Number of ranks.
        tp_size: Size of a tensor-parallel group.
        own_id: Id of the engine's node.
        num_threads: CPUs of each rank; None: the largest number that all ranks can have.

    Raises:
        CapacityError: Too few CPUs are free; the message has those of each node.
    """
    amount = num_threads or _most_each(nodes, num_ranks)
    _check_room(nodes, num_ranks, amount, "CPU")
    return Placement(_placed(nodes, num_ranks, tp_size, own_id, amount), amount)


def _most_each(nodes: Sequence[NodeResources], num_ranks: int) -> int:
    """Return the largest amount that fits for all ranks; 1 if none does."""
    most = max([int(node.free) for node in nodes], default=1)
    amounts = range(most, 0, -1)
    return next((n for n in amounts if sum(node.room(n) for node in nodes) >= num_ranks), 1)


def _check_room(nodes: Sequence[NodeResources], num_ranks: int, amount: int, resource: str) -> None:
    if sum(node.room(amount) for node in nodes) >= num_ranks:
        return
    free = sum(int(node.free) for node in nodes)
    listed = ", ".join(f"{node.name} {node.free:g} of {node.total:g}" for node in nodes)
    each = f", {amount} for each of {num_ranks} ranks," if amount > 1 else ""
    needed = num_ranks * amount
    raise CapacityError(
        f"the model needs {needed} {resource}{'' if needed == 1 else 's'}{each} in the Ray "
        f"cluster, {free} {'is' if free == 1 else 'are'} free: {listed or 'no node is alive'}; add "
        "nodes, end what uses them, or choose sizes with a smaller product"
    )


def _placed(
    nodes: Sequence[NodeResources], num_ranks: int, tp_size: int, own_id: str, amount: int
) -> tuple[NodeResources, ...]:
    """Place group by group: on the node of the last one, else where most fit."""
    left = sorted(nodes, key=lambda node: node.node_id != own_id)
    placed: list[NodeResources] = []
    while len(placed) < num_ranks:
        at = _next_node(left, tp_size, amount)
        num_placed = min(tp_size, left[at].room(amount))
        placed += [left[at]] * num_placed
        left[at] = replace(left[at], free=left[at].free - num_placed * amount)
    return tuple(placed[:num_ranks])


def _next_node(nodes: Sequence[NodeResources], tp_size: int, amount: int) -> int:
    """Return the first node with room for a whole group, else the one with most room."""
    room = [node.room(amount) for node in nodes]
    whole = [index for index, num in enumerate(room) if num >= tp_size]
    return whole[0] if whole else room.index(max(room))
