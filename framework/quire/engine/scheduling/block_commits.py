"""What follows when tokens are computed for certain: blocks are found, saved and freed."""

from collections.abc import Iterable

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_store.kv_transfers import KVTransfers
from quire.engine.request import Request, Status
from quire.engine.scheduling.prompt_sharing import PromptSharing
from quire.engine.scheduling.waiting_queue import WaitingQueue


class BlockCommits:
    """Tell everybody who waits for a request's blocks that some are computed."""

    def __init__(
        self,
        kv: KVCacheManager,
        waiting: WaitingQueue,
        sharing: PromptSharing,
        transfers: KVTransfers | None,
    ) -> None:
        self._kv = kv
        self._waiting = waiting
        self._sharing = sharing
        self._transfers = transfers

    def commit(self, request: Request, num_computed: int) -> None:
        """Take note that so many tokens of a running request are computed for certain."""
        fresh = self._kv.commit(request, num_computed)
        if fresh and self._transfers is not None:
            self._transfers.offer(request, fresh)
        self._kv.free_unneeded(request, num_computed)
        if request.promises:
            self._call(self._sharing.arrived(request, self._kv.is_found))
            if num_computed >= request.num_prompt_tokens:
                self.withdraw(request)

    def withdraw(self, request: Request) -> None:
        """The request computes no prompt any more: who followed it goes to the queue."""
        self._call(self._sharing.withdraw(request))

    def _call(self, followers: Iterable[Request]) -> None:
        for request in followers:
            request.status = Status.WAITING
            self._waiting.push(request)
