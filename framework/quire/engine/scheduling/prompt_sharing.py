"""Requests with the same beginning, at the same time: one computes it, the others wait for it.

Without this, n answers to one prompt that arrive together would compute the prompt n times, since
none finds it in the prefix cache yet. A request that begins promises the blocks of its prompt. One
that finds most of what it lacks promised follows: it waits outside the queue until the last block
that they share is computed, or its leader is gone.
"""

from collections.abc import Callable, Sequence

from quire.engine.request import Request


class PromptSharing:
    """Who computes which blocks now, and who waits for them."""

    def __init__(self) -> None:
        self._leaders: dict[bytes, Request] = {}  # by the promised block

    def promise(self, request: Request, hashes: Sequence[bytes]) -> None:
        """Note that a request is about to compute blocks of its prompt."""
        fresh = [name for name in hashes if name not in self._leaders]
        self._leaders.update(dict.fromkeys(fresh, request))
        request.promises = fresh

    def follow(self, request: Request, hashes: Sequence[bytes]) -> bool:
        """Let a request wait if at least half of the blocks that it lacks are promised by one.

        Args:
            request: Who might wait.
            hashes: The blocks that it lacks, in order.
        """
        leader = self._leaders.get(hashes[0]) if hashes else None
        if leader is None:
            return False
        num_shared = self._num_shared(leader, hashes)
        if 2 * num_shared < len(hashes):
            return False
        request.leader = leader
        request.awaited = hashes[num_shared - 1]
        leader.followers.append(request)
        return True

    def leave(self, request: Request) -> None:
        """Take a follower away from its leader."""
        if request.leader is not None:
            request.leader.followers.remove(request)
            request.leader = request.awaited = None

    def arrived(self, leader: Request, is_computed: Callable[[bytes], bool]) -> list[Request]:
        """Return the followers whose blocks are computed; they follow no longer."""
        ready = [r for r in leader.followers if r.awaited is not None and is_computed(r.awaited)]
        for request in ready:
            self.leave(request)
        return ready

    def withdraw(self, leader: Request) -> list[Request]:
        """End a request's promises; returns those who waited for them."""
        for name in leader.promises:
            del self._leaders[name]
        leader.promises = []
        left = list(leader.followers)
        for request in left:
            self.leave(request)
        return left

    def _num_shared(self, leader: Request, hashes: Sequence[bytes]) -> int:
        for index, name in enumerate(hashes):
            if self._leaders.get(name) is not leader:
                return index
        return len(hashes)
