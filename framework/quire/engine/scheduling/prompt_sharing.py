"""Concurrent requests with a common prefix: one computes it, the others wait for it.

Without this, n completions of one prompt that arrive together would compute the prompt n times,
since none finds it in the prefix cache yet. A request that starts promises the blocks of its
prompt. If at least half of the blocks that another request lacks are promised by one leader, it
follows: it waits outside the queue until their last shared block is computed or the leader stops.
"""

from collections.abc import Callable, Sequence

from quire.engine.request import Request
from quire.engine.scheduling.waiting_queue import WaitingQueue


class PromptSharing:
    """Prompt blocks being computed, their leaders, and the followers that wait for them.

    Args:
        waiting: Queue to which followers return.
    """

    def __init__(self, waiting: WaitingQueue) -> None:
        self._waiting = waiting
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
            hashes: Hashes of its missing blocks, in order; at least one.
        """
        leader = self._leaders.get(hashes[0])
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

    def release(self, leader: Request, is_computed: Callable[[bytes], bool]) -> None:
        """Queue the followers whose blocks are computed."""
        for request in tuple(leader.followers):
            if request.awaited_hash is not None and is_computed(request.awaited_hash):
                self.unfollow(request)
                self._waiting.push(request)

    def withdraw(self, leader: Request) -> None:
        """Withdraw a request's promises, and queue its followers."""
        for name in leader.promised_hashes:
            del self._leaders[name]
        leader.promised_hashes = []
        self.release(leader, lambda _: True)

    def _num_shared(self, leader: Request, hashes: Sequence[bytes]) -> int:
        for index, name in enumerate(hashes):
            if self._leaders.get(name) is not leader:
                return index
        return len(hashes)
