"""Plan of a step under construction: decodes, chunks, drafts, new requests and new blocks."""

from dataclasses import dataclass

from quire.engine.kv_store.kv_transfers import StepTransfers
from quire.engine.request import Request
from quire.messages import NewBlocks, ScheduledRequest, StepPlan, TokenPatch


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a request that starts or prefills; committed when the step has completed."""

    request: Request
    slot: int
    end: int  # num_computed_tokens of the request, this chunk included


class StepInProgress:
    """Scheduled tokens and the changes to send to the worker, collected for one plan.

    Attributes:
        prompts: Running requests with more than one pending token, in the policy's order.
        decodes: Entries of one token; `num_computed_tokens` of their requests includes it already.
        chunks: Number of tokens of every other scheduled request; counted in `finish`.
        drafts: Draft tokens to verify, by request.
        new_requests: Requests among `chunks` that need a slot assignment.
        new_blocks: Blocks appended to the tables of running requests.
        patches: Tokens that the first stage of a pipeline lacks, or that a beam search selected.
        is_short: Whether the pool ran out of blocks, so that no request may start.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._num_chunk_tokens = 0
        self.prompts: list[Request] = []
        self.decodes: list[ScheduledRequest] = []
        self.chunks: dict[Request, int] = {}
        self.drafts: dict[Request, list[int]] = {}
        self.new_requests: list[Request] = []
        self.new_blocks: list[NewBlocks] = []
        self.patches: list[TokenPatch] = []
        self.is_short = False

    @property
    def budget_left(self) -> int:
        """Number of tokens that can still be scheduled."""
        return self._budget - len(self.decodes) - self._num_chunk_tokens

    @property
    def num_tokens(self) -> int:
        """Number of tokens scheduled so far."""
        return len(self.decodes) + self._num_chunk_tokens

    def add(self, request: Request, num_tokens: int) -> None:
        """Schedule further tokens of a request."""
        if request.needs_assignment and request not in self.chunks:
            self.new_requests.append(request)
        self.chunks[request] = self.chunks.get(request, 0) + num_tokens
        self._num_chunk_tokens += num_tokens

    def note_blocks(self, request: Request, added: list[list[int]]) -> None:
        """Record the blocks that were appended to a running request's tables."""
        if request.needs_assignment:
            return  # the assignment has all its blocks
        for group, block_ids in enumerate(added):
            if block_ids:
                self.new_blocks.append(NewBlocks(_slot_of(request), group, block_ids))

    def patch(self, request: Request) -> None:
        """Send the workers the tokens that were added since the slot was assigned."""
        num_sent, known = request.num_sent_tokens, request.token_ids
        if num_sent < len(known):
            self.patches.append(TokenPatch(_slot_of(request), num_sent, known[num_sent:]))
            request.num_sent_tokens = len(known)

    def undo(self, request: Request) -> None:
        """Remove a running request from the step."""
        slot = _slot_of(request)
        num_decodes = len(self.decodes)
        self.decodes[:] = [entry for entry in self.decodes if entry.slot != slot]
        request.num_computed_tokens -= num_decodes - len(self.decodes)
        if request.needs_assignment and request in self.chunks:
            self.new_requests.remove(request)
        self._num_chunk_tokens -= self.chunks.pop(request, 0)
        if self.drafts.pop(request, None) is not None:
            request.num_drafts_in_flight = 0  # they were scheduled in this step only
        self.new_blocks = [added for added in self.new_blocks if added.slot != slot]
        self.patches = [patch for patch in self.patches if patch.slot != slot]

    def finish(self, plan_id: int, transfers: StepTransfers) -> tuple[StepPlan, list[Chunk]]:
        """Return the plan and its chunks, and advance `num_computed_tokens` of the requests."""
        assignments = [request.assignment() for request in self.new_requests]
        for request in self.new_requests:
            request.needs_assignment, request.block_copies = False, []
        requests, chunks = self.decodes, []
        for request, num_tokens in self.chunks.items():
            requests.append(self._scheduled_request(request, num_tokens))
            request.num_computed_tokens += num_tokens
            request.last_plan_id = plan_id
            end = request.num_computed_tokens
            if request not in self.drafts:
                chunks.append(Chunk(request, _slot_of(request), end))
        plan = StepPlan(
            plan_id=plan_id,
            requests=requests,
            assignments=assignments,
            new_blocks=self.new_blocks,
            token_patches=self.patches,
            kv_transfers=transfers.planned.message,
            kv_loads=transfers.planned.loads,
            kv_saves=transfers.planned.saves,
            kv_resent=list(transfers.resent),
            kv_applied=transfers.applied,
            stop_kv_store=transfers.is_stopped,
        )
        return plan, chunks

    def _scheduled_request(self, request: Request, num_tokens: int) -> ScheduledRequest:
        slot, drafts = _slot_of(request), self.drafts.get(request)
        if drafts is not None:
            return ScheduledRequest(slot, num_tokens, num_tokens, drafts)
        is_last = num_tokens == request.num_pending_tokens
        return ScheduledRequest(slot, num_tokens, int(is_last))


def _slot_of(request: Request) -> int:
    if request.slot is None:
        raise RuntimeError(f"request {request.request_id} is scheduled without a slot")
    return request.slot
