"""Groups of requests that run together: their slots are reserved, and they leave together."""

from __future__ import annotations

from quire.engine.request import Request


class RequestGroup:
    """Requests that are started, preempted and removed together, for one request of a caller.

    Args:
        root: The caller's request, which waits in the queue for all.
        width: Number of slots that are reserved when it starts.
        num_held_back: Number of last tokens of each member that are computed only together.

    Attributes:
        root: The caller's request; the group has its id.
        members: All members, the root included.
        width: Number of slots that the group may take.
        num_held_back: Number of last tokens of each member that are computed only together.
    """

    def __init__(self, root: Request, width: int, num_held_back: int = 0) -> None:
        self.root = root
        self.members = [root]
        self.width = width
        self.num_held_back = num_held_back
