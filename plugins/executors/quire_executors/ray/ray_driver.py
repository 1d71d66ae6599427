"""Process of Ray's driver: it reserves a device for each rank, and starts and watches the actors.

Ray ends its driver when its head is gone, and starts threads and processes of its own. So the
driver is neither the engine nor the server, but a helper process that ends with the engine.
"""

import logging
import select
import socket
import time
from typing import Any

import ray
import ray._private.state
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from quire.errors import CapacityError, QuireError
from quire_executors.ray.ray_actor import END_GROUP, AgentActor, worker_arguments
from quire_executors.ray.ray_placement import (
    NodeResources,
    Placement,
    place_on_cpus,
    place_on_gpus,
)
from quire_executors.ray.ray_wire import (
    AgentEnded,
    FromDriver,
    Refused,
    Release,
    Reserve,
    Reserved,
    StartAgents,
    ToDriver,
    decode,
    encode,
)

MAX_FRAME_BYTES = 64 * 1024
RESERVE_TIMEOUT_S = 30.0
POLL_S = 0.2  # between looks at the actors and at the engine
AGENT_END_S = 3.0  # for agents to end with their engine
FREED_S = 2.0  # for Ray to count what an engine had that has just ended
NODE_LABEL = "ray.io/node-id"
ADVICE = "Some common causes include"  # in Ray's messages about workers that died

logger = logging.getLogger(__name__)


def main(channel: socket.socket) -> None:
    """Serve the engine at the other end of a channel until it releases the ranks, or ends."""
    driver = RayDriver(channel)
    try:
        driver.run()
    finally:
        ray.shutdown()


class RayDriver:
    """Ray's driver for the ranks of one engine.

    Args:
        channel: Channel to the engine.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._actors: list[Any] = []

    def run(self) -> None:
        """Reserve, start the agents when the engine says so, and report their ends."""
        request = self._receive()
        if not isinstance(request, Reserve):
            return
        try:
            placement, group = self._reserve(request)
        except (QuireError, RayError, ConnectionError, RuntimeError, ValueError) as error:
            self._send(Refused(isinstance(error, CapacityError), str(error)))
            return
        nodes = [f"{node.name} ({node.address})" for node in placement.nodes]
        head = ray.get_runtime_context().gcs_address
        self._send(Reserved(ray.util.get_node_ip_address(), nodes, head))
        start = self._receive()
        if isinstance(start, StartAgents):
            self._start_actors(request, placement, group)
            self._watch(self._start_agents(start, request, placement))
            self._end_agents()
        for actor in self._actors:
            ray.kill(actor)

    def _receive(self) -> ToDriver:
        """Wait for a message; the end of the engine counts as `Release`."""
        frame = self._channel.recv(MAX_FRAME_BYTES)
        return decode(frame, ToDriver) if frame else Release()  # type: ignore[arg-type]

    def _send(self, message: FromDriver) -> None:
        self._channel.send(encode(message))

    def _reserve(self, request: Reserve) -> tuple[Placement, PlacementGroup]:
        """Connect to Ray, choose the nodes, and reserve the devices.

        Raises:
            CapacityError: Too little is free.
            RayError: Ray cannot be used.
        """
        ray.init(include_dashboard=False, logging_level=logging.WARNING)
        resource = "GPU" if request.needs_gpus else "CPU"
        placement = _placement(request, resource)
        group = placement_group(
            [{resource: placement.amount} for _ in placement.nodes],
            strategy="PACK",
            bundle_label_selector=[{NODE_LABEL: node.node_id} for node in placement.nodes],
        )
        if not group.wait(RESERVE_TIMEOUT_S):
            raise CapacityError(
                f"Ray did not reserve {request.num_ranks} times {placement.amount} {resource} "
                f"within {RESERVE_TIMEOUT_S:g} s, though they were free; was something else "
                "started at the same time? Start again"
            )
        return placement, group

    def _start_actors(self, request: Reserve, placement: Placement, group: PlacementGroup) -> None:
        """Start an actor for each rank, in its reserved bundle."""
        amount = placement.amount
        devices = {"num_gpus": 1, "num_cpus": 0} if request.needs_gpus else {"num_cpus": amount}
        actor_class = ray.remote(concurrency_groups={END_GROUP: 1})(AgentActor)
        for rank in range(request.num_ranks):
            strategy = PlacementGroupSchedulingStrategy(group, rank)
            options = {"scheduling_strategy": strategy, **devices}
            self._actors.append(actor_class.options(**options).remote())

    def _start_agents(
        self, start: StartAgents, request: Reserve, placement: Placement
    ) -> dict[Any, int]:
        """Start `quire worker` in each actor; return the rank by the result that its end is."""
        environment = {} if request.needs_gpus else placement.thread_limit
        for rank, actor in enumerate(self._actors):
            node = placement.nodes[rank]
            arguments = worker_arguments(start.address, rank, node.address)
            actor.start.remote(arguments, start.key, environment)
        return {actor.wait.remote(): rank for rank, actor in enumerate(self._actors)}

    def _end_agents(self) -> None:
        """Let the actors kill those agents that do not end with the engine, as stopped ones."""
        group = {"concurrency_group": END_GROUP}
        ends = [actor.end.options(**group).remote(AGENT_END_S) for actor in self._actors]
        ray.wait(ends, num_returns=len(ends), timeout=AGENT_END_S + POLL_S)

    def _watch(self, ranks: dict[Any, int]) -> None:
        """Report each end, until the engine releases the ranks or ends."""
        while not self._has_message():
            if not ranks:
                self._receive()
                return
            for ended in ray.wait(list(ranks), timeout=POLL_S)[0]:
                self._send(AgentEnded(ranks.pop(ended), _end_of(ended)))

    def _has_message(self) -> bool:
        return bool(select.select([self._channel], [], [], 0.0)[0])


def _placement(request: Reserve, resource: str) -> Placement:
    """Choose the nodes from what is free, or becomes free within a moment.

    Raises:
        CapacityError: Too little is free.
    """
    own_id = ray.get_runtime_context().get_node_id()
    size = request.num_ranks, request.tp_size
    deadline = time.monotonic() + FREED_S
    while True:
        nodes = _nodes(resource)
        try:
            if request.needs_gpus:
                return place_on_gpus(nodes, *size, own_id)
            return place_on_cpus(nodes, *size, own_id, request.num_threads)
        except CapacityError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_S)


def _nodes(resource: str) -> list[NodeResources]:
    """Return the living nodes of the cluster with what they have of a resource."""
    free = ray._private.state.available_resources_per_node()
    return [
        NodeResources(
            node_id=node["NodeID"],
            name=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
            total=node["Resources"].get(resource, 0.0),
            free=free.get(node["NodeID"], {}).get(resource, 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _end_of(result: Any) -> str:
    """Describe the end of an agent, or of its actor, for people."""
    try:
        return f"its `quire worker` {ray.get(result)}"
    except RayActorError as error:
        return f"its Ray actor died: {_cause(error)}"
    except RayError as error:
        return f"its Ray actor failed: {_cause(error)}"


def _cause(error: RayError) -> str:
    """Return the end of Ray's message, which has the cause, without its general advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[-2:]).partition(ADVICE)[0].strip()
