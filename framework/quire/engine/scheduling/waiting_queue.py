"""The queue of the requests that wait, in the order that the policy gives them.

Only `place` asks the policy, and only it can fail. All keys that it gives can be compared with each
other, so who has one comes into a queue, and out of it, without an error.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from quire.engine.request import Request
from quire.engine.scheduling.guarded_policy import GuardedPolicy

BY_KEY = attrgetter("key")


class WaitingQueue:
    """Requests by the policy's key and, among equals, by their arrival here.

    A request keeps its key until it is over, so one that was preempted comes back to its old place.
    """

    def __init__(self, policy: GuardedPolicy) -> None:
        self._policy = policy
        self._requests: list[Request] = []
        self._num_placed = 0

    def place(self, request: Request) -> None:
        """Give a new request its key, which it keeps.

        Raises:
            RequestFailedError: The policy failed, or its key cannot have a place among others.
        """
        self._num_placed += 1
        request.key = (self._policy.order(request), self._num_placed)

    def push(self, request: Request) -> None:
        """Put a placed request into the queue."""
        insort(self._requests, request, key=BY_KEY)

    def remove(self, request: Request) -> None:
        """Take a request out of the queue."""
        remove_from(self._requests, request)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


def insert_into(requests: list[Request], request: Request) -> None:
    """Put a request into a list that is in order, in place."""
    insort(requests, request, key=BY_KEY)


def remove_from(requests: list[Request], request: Request) -> None:
    """Take a request out of a list that is in order, in place.

    Raises:
        ValueError: It is not there.
    """
    index = bisect_left(requests, request.key, key=BY_KEY)
    if index == len(requests) or requests[index] is not request:
        raise ValueError(f"request {request.request_id} is not in the list")
    del requests[index]
