"""Serve's request router: the replica with the least to compute once it has the request.

Serve creates one for each handle, in the process of the caller, and passes every request to it. It
has one thread. The choice is that of quire's own router.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from quire.ray.prompt_reader import NO_TOKENS, PromptTokens
from quire.ray.serve_routing import ReplicaFacts, ServeRouting


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray need not be installed
    """Sends each request where its prompt's prefix is cached, unless waiting there costs more."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Start with no replica known; there are no options."""
        if kwargs:
            raise ValueError(f"PrefixRouter has no options, got {', '.join(kwargs)}")
        self._routing = ServeRouting()

    def update_replicas(self, replicas: Sequence[RunningReplica]) -> None:
        """Take what the replicas report, also while there is no request."""
        super().update_replicas(replicas)
        self._read_reports(replicas)

    async def choose_replicas(
        self,
        candidate_replicas: Sequence[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas in the order in which they are asked to take the request."""
        if pending_request is None:
            return [list(candidate_replicas)]
        by_name = self._read_reports(candidate_replicas)
        request_id = pending_request.metadata.internal_request_id
        order = self._routing.place(request_id, _prompt_of(pending_request))
        pending_request.future.add_done_callback(partial(self._forget_cancelled, request_id))
        return [[by_name[name]] for name in order]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Count the request on the replica that has taken it."""
        del result
        self._routing.move(pending_request.metadata.internal_request_id, name_of(replica_id))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count the request no longer."""
        super().on_request_completed(replica_id, internal_request_id)
        self._routing.end(internal_request_id, name_of(replica_id))

    def _read_reports(self, replicas: Sequence[RunningReplica]) -> dict[str, RunningReplica]:
        """Take what replicas report; return them by name."""
        by_name = {name_of(replica.replica_id): replica for replica in replicas}
        self._routing.update({name: _facts(replica) for name, replica in by_name.items()})
        for name, replica in by_name.items():
            self._routing.read(name, replica.routing_stats)
        return by_name

    def _forget_cancelled(self, request_id: str, chosen: Any) -> None:
        """Forget a request whose caller has left before a replica had it."""
        if chosen.cancelled():
            self._routing.end(request_id)


def name_of(replica_id: ReplicaID) -> str:
    """Return the name of a replica, which no other one ever has."""
    return str(replica_id.unique_id)


def _facts(replica: RunningReplica) -> ReplicaFacts:
    return msgspec.convert(replica.replica_metadata, ReplicaFacts)


def _prompt_of(request: PendingRequest) -> PromptTokens:
    """Return the prompt that the ingress has read; calls of other methods have none."""
    data = request.kwargs.get("prompt")
    return NO_TOKENS if data is None else msgspec.msgpack.decode(data, type=PromptTokens)
