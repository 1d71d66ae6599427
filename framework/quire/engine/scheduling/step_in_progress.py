"""The plan of a step while it is being made: who decodes, who computes a chunk, who is new."""

from dataclasses import dataclass

from quire.engine.kv_store.kv_transfers import StepTransfers
from quire.engine.request import Request
from quire.messages import NewBlocks, ScheduledRequest, StepPlan


@dataclass(frozen=True, slots=True)
class Chunk:
    """A share of more than a decode's, or a first one: it is settled when the step has landed."""

    request: Request
    slot: int
    end: int  # computed tokens of the request, this share included


class StepInProgress:
    """Shares, and what the worker must hear; nothing is known to the requests before `finish`.

    Attributes:
        decodes: Shares of one token; their requests have counted it already.
        chunks: Tokens that other requests compute.
        joined: Those among them that are new to the worker.
        is_short: The pool ran out of blocks: nobody new may begin.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._num_chunk_tokens = 0
        self.decodes: list[ScheduledRequest] = []
        self.chunks: dict[Request, int] = {}
        self.drafts: dict[Request, list[int]] = {}
        self.joined: list[Request] = []
        self.new_blocks: list[NewBlocks] = []
        self.is_short = False

    @property
    def budget_left(self) -> int:
        """Tokens that the step can still hold."""
        return self._budget - len(self.decodes) - self._num_chunk_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens that the step holds."""
        return len(self.decodes) + self._num_chunk_tokens

    def add(self, request: Request, num_tokens: int) -> None:
        """Let a request compute so many tokens, beyond those that it was given in this step."""
        self.chunks[request] = self.chunks.get(request, 0) + num_tokens
        self._num_chunk_tokens += num_tokens

    def note_blocks(self, request: Request, added: list[list[int]]) -> None:
        """Note blocks that a running request's tables were given."""
        for group, block_ids in enumerate(added):
            if block_ids:
                self.new_blocks.append(NewBlocks(_slot_of(request), group, block_ids))

    def undo(self, request: Request) -> None:
        """Take a running request out of the step again."""
        slot = _slot_of(request)
        num_decodes = len(self.decodes)
        self.decodes[:] = [share for share in self.decodes if share.slot != slot]
        request.num_computed_tokens -= num_decodes - len(self.decodes)
        self._num_chunk_tokens -= self.chunks.pop(request, 0)
        if self.drafts.pop(request, None) is not None:
            request.num_drafts_in_flight = 0  # they were to leave with this step
        self.new_blocks = [added for added in self.new_blocks if added.slot != slot]

    def finish(self, plan_id: int, transfers: StepTransfers) -> tuple[StepPlan, list[Chunk]]:
        """Return the plan, and let the requests count what they will compute."""
        assignments = [request.assignment() for request in self.joined]
        requests, chunks = self.decodes, []
        for request, num_tokens in self.chunks.items():
            requests.append(self._share(request, num_tokens))
            request.num_computed_tokens += num_tokens
            end = request.num_computed_tokens
            if request not in self.drafts:
                chunks.append(Chunk(request, _slot_of(request), end))
        plan = StepPlan(
            plan_id=plan_id,
            requests=requests,
            assignments=assignments,
            new_blocks=self.new_blocks,
            kv_transfers=transfers.message,
            kv_loads=list(transfers.loads),
            kv_saves=list(transfers.saves),
            has_transfers=transfers.is_open,
            stop_kv_store=transfers.is_stopped,
        )
        return plan, chunks

    def _share(self, request: Request, num_tokens: int) -> ScheduledRequest:
        slot, drafts = _slot_of(request), self.drafts.get(request)
        if drafts is not None:
            return ScheduledRequest(slot, num_tokens, num_tokens, drafts)
        is_last = num_tokens == request.num_pending_tokens
        return ScheduledRequest(slot, num_tokens, int(is_last))


def _slot_of(request: Request) -> int:
    if request.slot is None:
        raise RuntimeError(f"request {request.request_id} is scheduled without a slot")
    return request.slot
