"""The queue of waiting requests, in the policy's order.

Only `assign_key` calls the policy, and only it can fail. Any two of its keys can be compared, so a
request with a key can be added and removed without an error.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from quire.engine.request import Request, Status
from quire.engine.scheduling.guarded_policy import GuardedPolicy

BY_KEY = attrgetter("key")


class WaitingQueue:
    """Requests by the policy's key and, among equals, by their order of arrival.

    A request keeps its key until it finishes, so a preempted one returns to its old position.
    """

    def __init__(self, policy: GuardedPolicy) -> None:
        self._policy = policy
        self._requests: list[Request] = []
        self._num_placed = 0

    def assign_key(self, request: Request) -> None:
        """Assign a new request its permanent sort key.

        Raises:
            RequestFailedError: The policy failed, or its key cannot be compared with others.
        """
        self._num_placed += 1
        request.key = (self._policy.order(request), self._num_placed)

    def push(self, request: Request) -> None:
        """Queue a request that has a key: a new one, or one that was deferred or preempted."""
        request.status = Status.WAITING
        insert_into(self._requests, request)

    def remove(self, request: Request) -> None:
        """Remove a request from the queue."""
        remove_from(self._requests, request)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


def insert_into(requests: list[Request], request: Request) -> None:
    """Insert a request into a sorted list, in place."""
    insort(requests, request, key=BY_KEY)


def remove_from(requests: list[Request], request: Request) -> None:
    """Remove a request from a sorted list, in place.

    Raises:
        ValueError: The request is not in the list.
    """
    index = bisect_left(requests, request.key, key=BY_KEY)
    if index == len(requests) or requests[index] is not request:
        raise ValueError(f"request {request.request_id} is not in the list")
    del requests[index]
