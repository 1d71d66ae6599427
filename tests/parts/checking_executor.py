"""Workers that compute contents instead of numbers, and check each plan and each read.

The stages of a pipeline are two: the first, which has the tokens of assignments and patches and no
others, and the last, which computes and samples a step when it is collected. So what is in flight
is written nowhere, and its tokens are known nowhere. A single stage does all at once, in order.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fickle_store import FickleHost
from kv_contents import KVContents
from kv_memory import KVMemory

from quire.engine.kv_cache.block_pool import BlockPool
from quire.errors import StepFailedError
from quire.interfaces.executor import StepRunner, Worker
from quire.messages import (
    ErrorReport,
    RowBitmask,
    ScheduledRequest,
    SlotAssignment,
    SlotResult,
    StepPlan,
    StepResult,
    TokenLogprobs,
    TransferReport,
    WorkerControl,
)

CURSED = 9  # a token that the model cannot compute
FAILED_STEP = ErrorReport("request_failed", "smoke in the model")
UNMASKED = 8  # what a row draws that has a grammar and no mask: nobody may hear of it


@dataclass
class Row:
    """A slot, as the worker knows it."""

    given: SlotAssignment
    path: list[int]  # the beginning at each length
    tokens: list[int]
    blocks: list[list[int]]
    computed: int
    epoch: int
    first_stage: list[int]  # tokens that the first stage of a pipeline has
    has_failed: bool = False

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.given.num_prompt_tokens

    @property
    def state(self) -> dict[str, float]:
        """State of sampler steps after these tokens; every third request has some."""
        generated = self.tokens[self.given.num_prompt_tokens :]
        if self.given.seed % 3 or not generated:
            return {}
        total = sum(place * token for place, token in enumerate(generated, start=1))
        return {"total": float(total), "count": float(len(generated))}


@dataclass
class Part:
    """The scheduled tokens of one slot, and the row that had the slot then."""

    row: Row
    share: ScheduledRequest
    start: int  # position of the first token

    @property
    def end(self) -> int:
        return self.start + self.share.num_tokens


@dataclass
class Flight:
    """A step that was launched and not collected."""

    plan: StepPlan
    result: StepResult
    parts: list[Part] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)
    blocks: set[int] = field(default_factory=set)  # that it reads or writes
    written: set[int] = field(default_factory=set)
    unmasked: set[int] = field(default_factory=set)  # seeds with a grammar and without a mask


class CheckingExecutor(Worker, StepRunner):
    """One worker whose model draws what `KVContents` says, and that trusts no plan.

    Args:
        memory: Under the blocks.
        pool: To see that nobody writes what others may read.
        store: The worker's half of a KV store.
        num_stages: Number of pipeline stages.

    Attributes:
        salts: The cache salt of each request, by its seed; the worker is not told.
        bound: Seeds of the requests with a grammar.
        limits: By seed too, the tokens that are computed at most.
        epoch: How often the prefix cache was reset.
        max_accepted: Drafts that are accepted in a step, at most.
        failing_seed: Of a request whose next share fails.
        interrupted_verb: Whose next call is interrupted; what is in flight is lost then.
        may_fail_step: Whether the next step of several requests fails as a whole. What is in flight
            is dropped, and the transfers that it reports are reported with the next result.
    """

    def __init__(
        self,
        memory: KVMemory,
        pool: BlockPool,
        store: FickleHost | None = None,
        num_stages: int = 1,
    ) -> None:
        self.memory = memory
        self.contents: KVContents = memory.contents
        self.pool = pool
        self.store = store
        self.num_stages = num_stages
        self.rows: dict[int, Row] = {}
        self.flights: deque[Flight] = deque()
        self.salts: dict[int, str | None] = {}
        self.limits: dict[int, int] = {}
        self.epoch = 0
        self.max_accepted = 99
        self.failing_seed: int | None = None
        self.interrupted_verb = ""
        self.may_fail_step = False
        self.num_failed_steps = 0
        self._dropped = TransferReport()
        self.last_plan: StepPlan | None = None
        self.bound: set[int] = set()

    def load(self) -> Any:
        raise NotImplementedError

    def allocate(self, plans: Sequence[Any]) -> StepRunner:
        raise NotImplementedError

    def execute(self, plan: StepPlan) -> None:
        self._may_be_interrupted("execute")
        if self.num_stages > 1 and len(self.flights) >= self.num_stages:
            raise AssertionError("more steps are in flight than there are stages")
        flight = Flight(plan, StepResult(plan_id=plan.plan_id, results=[]))
        for given in plan.assignments:
            self._assign(given)
        for added in plan.new_blocks:
            self.rows[added.slot].blocks[added.group] += added.block_ids
        self._patch(plan)
        if self.store is not None:
            self.store.begin_step(plan)
        for share in plan.requests:
            if share.slot in flight.slots:
                raise AssertionError(f"slot {share.slot} has two shares in one step")
            flight.slots.add(share.slot)
            self._begin(share, flight)
        if self.num_stages == 1:
            self._compute(flight)
        self.flights.append(flight)
        self.last_plan = plan

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        self._may_be_interrupted("sample")
        flight = self.flights[-1]
        if flight.plan.plan_id != plan_id:
            raise AssertionError("a step is sampled that is not the last one launched")
        self._check_masks(flight, masks)
        if self.num_stages == 1:
            self._end(flight)

    def collect(self, plan_id: int) -> StepResult:
        self._may_be_interrupted("collect")
        self._may_fail(plan_id)
        flight = self.flights.popleft()
        if flight.plan.plan_id != plan_id:
            raise AssertionError("steps are collected out of order")
        if self.num_stages > 1:
            self._compute(flight)
            self._end(flight)
        return flight.result

    def control(self, message: WorkerControl) -> Any:
        return message

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...

    def _may_be_interrupted(self, verb: str) -> None:
        """Raise once, if asked for; what the lost steps wrote is garbage then."""
        if verb != self.interrupted_verb:
            return
        self.interrupted_verb = ""
        for flight in self.flights:
            self.memory.spoil(sorted(flight.written))
        self.flights.clear()
        raise KeyboardInterrupt

    def _may_fail(self, plan_id: int) -> None:
        """Raise once, if asked for, what workers raise that have dropped all steps in flight."""
        if not self.may_fail_step or len(self.flights[0].plan.requests) < 2:
            return
        self.may_fail_step = False
        self.num_failed_steps += 1
        for flight in self.flights:
            self._keep_transfers(flight.result.transfers)
            self.memory.spoil(sorted(flight.written))
        self.flights.clear()
        raise StepFailedError("worker 1 failed", report=FAILED_STEP, slots={}, plan_id=plan_id)

    def _keep_transfers(self, report: TransferReport | None) -> None:
        if report is not None:
            dropped = self._dropped
            self._dropped = TransferReport(
                [*dropped.done, *report.done], [*dropped.failed, *report.failed]
            )

    def _assign(self, given: SlotAssignment) -> None:
        if any(given.slot in flight.slots for flight in self.flights):
            raise AssertionError(f"slot {given.slot} is given away while a step uses it")
        adapter = "" if given.adapter is None else given.adapter.content_hash
        root = self.contents.root(adapter, self.salts[given.seed])
        path = self.contents.path(root, given.token_ids)
        blocks = [list(ids) for ids in given.block_ids]
        row = self.rows[given.slot] = Row(
            given,
            path,
            list(given.token_ids),
            blocks,
            given.num_computed_tokens,
            self.epoch,
            list(given.token_ids),
        )
        if given.state != row.state:
            raise AssertionError(f"slot {given.slot} has the state after other tokens")

    def _patch(self, plan: StepPlan) -> None:
        """Give the first stage the tokens that it lacks for this step, and no others."""
        if self.num_stages == 1 and plan.token_patches:
            raise AssertionError("a single stage has every token that it sampled")
        planned = {share.slot for share in plan.requests}
        for patch in plan.token_patches:
            row = self.rows[patch.slot]
            end = patch.position + len(patch.token_ids)
            if patch.slot not in planned or not patch.token_ids:
                raise AssertionError(f"{patch} is for no row of its step")
            if patch.position != len(row.first_stage):
                raise AssertionError(f"{patch} is stale: {len(row.first_stage)} tokens are there")
            if patch.token_ids != row.tokens[patch.position : end]:
                raise AssertionError(f"{patch} has tokens that were not sampled")
            row.first_stage += patch.token_ids

    def _begin(self, share: ScheduledRequest, flight: Flight) -> None:
        """Check the tokens of a slot in the tables of all stages, and count them as computed."""
        row = self.rows[share.slot]
        part = Part(row, share, row.computed)
        if part.end > self.limits[row.given.seed]:
            raise AssertionError(f"{share} computes more than the longest answer needs")
        self._check_share(row, share, part.end)
        if self.num_stages > 1 and part.end > len(row.first_stage):
            raise AssertionError(f"{share} computes a token that the first stage does not have")
        for group, table in enumerate(row.blocks):
            blocks = self.memory.blocks_used(group, table, part.start, part.end)
            flight.blocks.update(blocks)
            flight.written.update(self._written(group, table, part.start, part.end))
        row.has_failed |= self.failing_seed == row.given.seed
        if self.failing_seed == row.given.seed:
            self.failing_seed = None
        row.computed = part.end
        flight.parts.append(part)

    def _compute(self, flight: Flight) -> None:
        for part in flight.parts:
            row, start, end = part.row, part.start, part.end
            path = row.path + self.contents.path(row.path[-1], part.share.draft_token_ids)[1:]
            row.has_failed |= CURSED in row.tokens[start:end]
            for group, table in enumerate(row.blocks):
                if not row.has_failed:
                    self.memory.check_read(group, table, path, start, end, row.epoch)
                self._check_written(group, table, start, end)
                self.memory.write(group, table, path, start, end, row.epoch)
                if row.has_failed:
                    self.memory.spoil(self._written(group, table, start, end))

    def _check_share(self, row: Row, share: ScheduledRequest, end: int) -> None:
        num_drafts = len(share.draft_token_ids)
        if share.num_tokens < 1 or end > len(row.tokens) + num_drafts:
            raise AssertionError(f"{share} computes tokens that nobody knows")
        is_last = end == len(row.tokens) + num_drafts
        expected = share.num_tokens if num_drafts else int(is_last)
        if share.num_samples != expected or (num_drafts and share.num_tokens != 1 + num_drafts):
            raise AssertionError(f"{share} samples at the wrong time")

    def _written(self, group: int, table: list[int], start: int, end: int) -> list[int]:
        if self.memory.is_state(group) and len(table) == 1:
            return table
        size = self.memory.block_size
        return table[start // size : (end - 1) // size + 1]

    def _check_written(self, group: int, table: list[int], start: int, end: int) -> None:
        for block in self._written(group, table, start, end):
            if self.pool.references(block) != 1 or self.pool.content(block) is not None:
                raise AssertionError(f"block {block} is written and others may read it")

    def _check_masks(self, flight: Flight, masks: Sequence[RowBitmask]) -> None:
        for mask in masks:
            num_accepted = int.from_bytes(mask.words, "little")
            if num_accepted != self.rows[mask.slot].num_generated:
                raise AssertionError(f"slot {mask.slot} has the mask of another position")
        drawing = {share.slot for share in flight.plan.requests if share.num_samples}
        masked = {mask.slot for mask in masks}
        if not masked <= drawing:
            raise AssertionError("there are masks for rows that do not draw")
        flight.unmasked = {self.rows[slot].given.seed for slot in drawing - masked} & self.bound

    def _end(self, flight: Flight) -> None:
        """Sample, and write the result."""
        rows = [self._result(part, flight) for part in flight.parts]
        if self.store is not None:
            self._keep_transfers(self.store.report(flight.plan.plan_id))
        report, self._dropped = self._dropped, TransferReport()
        results = [row for row in rows if row is not None]
        flight.result = StepResult(plan_id=flight.plan.plan_id, results=results, transfers=report)

    def _result(self, part: Part, flight: Flight) -> SlotResult | None:
        row, share = part.row, part.share
        is_unmasked = row.given.seed in flight.unmasked
        tokens = self._draw(row, share, is_unmasked)  # whatever the numbers are, as a model does
        if row.has_failed:
            return SlotResult(share.slot, [], None, ErrorReport("request_failed", "cursed"))
        logprobs = self._prompt_logprobs(row, part.start, share.num_tokens)
        if not tokens and logprobs is None:
            return None
        state = row.state if tokens else {}
        return SlotResult(share.slot, tokens, prompt_logprobs=logprobs, state=state or None)

    def _draw(self, row: Row, share: ScheduledRequest, is_unmasked: bool) -> list[int]:
        """Draw one token, and one more behind each draft that is what would have been drawn."""
        if not share.num_samples:
            return []
        drawn = [self._draw_one(row, is_unmasked)]
        for draft in share.draft_token_ids[: self.max_accepted]:
            if draft != drawn[-1]:
                break
            drawn.append(self._draw_one(row, is_unmasked))
        row.computed = len(row.tokens) - 1 if share.draft_token_ids else row.computed
        return drawn

    def _draw_one(self, row: Row, is_unmasked: bool) -> int:
        given = row.given
        forbidden = given.stop_token_ids if row.num_generated < given.min_tokens else ()
        token = self.contents.sampled(row.path[-1], given.child, forbidden)
        if is_unmasked:
            token = UNMASKED
        row.tokens.append(token)
        row.path.append(self.contents.child(row.path[-1], token))
        return token

    def _prompt_logprobs(self, row: Row, start: int, count: int) -> list[TokenLogprobs] | None:
        if row.given.num_prompt_logprobs is None:
            return None
        end = min(start + count, row.given.num_prompt_tokens - 1)
        if end <= start:
            return None
        targets = range(start + 1, end + 1)
        return [TokenLogprobs([row.tokens[t]], [float(row.path[t + 1])], 1) for t in targets]
