"""Commits of computed blocks: prefix-cache registration, KV-store saves and early frees."""

from collections.abc import Iterable

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_store.kv_transfers import KVTransfers
from quire.engine.request import Request, Status
from quire.engine.scheduling.prompt_sharing import PromptSharing
from quire.engine.scheduling.waiting_queue import WaitingQueue


class BlockCommits:
    """Commits computed blocks, and requeues the requests that wait for them."""

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
        """Commit the first `num_computed` tokens of a running request."""
        fresh = self._kv.commit(request, num_computed)
        if fresh and self._transfers is not None:
            self._transfers.offer(request, fresh)
        self._kv.free_unneeded(request, num_computed)
        if request.promised_hashes:
            self._requeue(self._sharing.pop_ready(request, self._kv.is_cached))
            if num_computed >= request.num_prompt_tokens:
                self.withdraw(request)

    def withdraw(self, request: Request) -> None:
        """Withdraw the blocks that a request promised, and requeue its followers."""
        self._requeue(self._sharing.withdraw(request))

    def _requeue(self, followers: Iterable[Request]) -> None:
        for request in followers:
            request.status = Status.WAITING
            self._waiting.push(request)
