"""Concurrent requests with a common prefix: one computes it, the others wait for it.

Without this, n completions of one prompt that arrive together would compute the prompt n times,
since none finds it in the prefix cache yet. A request that starts promises the blocks of its
prompt. If at least half of the blocks that another request lacks are promised by one leader, it
follows: it waits outside the queue until their last shared block is computed or the leader stops.
"""

from collections.abc import Callable, Sequence

from quire.engine.request import Request


class PromptSharing:
    """Prompt blocks being computed, their leaders, and the followers that wait for them."""

    def __init__(self) -> None:
        self._leaders: dict[bytes, Request] = {}  # by the promised block

    def promise(self, request: Request, hashes: Sequence[bytes]) -> None:
        """Record the prompt blocks that a request is about to compute."""
        fresh = [name for name in hashes if name not in self._leaders]
        self._leaders.update(dict.fromkeys(fresh, request))
        request.promised_hashes = fresh

    def follow(self, request: Request, hashes: Sequence[bytes]) -> bool:
        """Make a request a follower if one leader promises at least half of its missing blocks.

        Args:
            request: Request that may wait.
            hashes: Hashes of its missing blocks, in order.
        """
        leader = self._leaders.get(hashes[0]) if hashes else None
        if leader is None:
            return False
        num_shared = self._num_shared(leader, hashes)
        if 2 * num_shared < len(hashes):
            return False
        request.leader = leader
        request.awaited_hash = hashes[num_shared - 1]
        leader.followers.append(request)
        return True

    def unfollow(self, request: Request) -> None:
        """Detach a follower from its leader."""
        if request.leader is not None:
            request.leader.followers.remove(request)
            request.leader = request.awaited_hash = None

    def pop_ready(self, leader: Request, is_computed: Callable[[bytes], bool]) -> list[Request]:
        """Detach and return the followers whose blocks are computed."""
        ready = [
            r
            for r in leader.followers
            if r.awaited_hash is not None and is_computed(r.awaited_hash)
        ]
        for request in ready:
            self.unfollow(request)
        return ready

    def withdraw(self, leader: Request) -> list[Request]:
        """Withdraw a request's promises; detach and return its followers."""
        for name in leader.promised_hashes:
            del self._leaders[name]
        leader.promised_hashes = []
        followers = list(leader.followers)
        for request in followers:
            self.unfollow(request)
        return followers

    def _num_shared(self, leader: Request, hashes: Sequence[bytes]) -> int:
        for index, name in enumerate(hashes):
            if self._leaders.get(name) is not leader:
                return index
        return len(hashes)
