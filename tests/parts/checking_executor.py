"""Workers that compute contents instead of numbers, and check each plan and each read."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fickle_store import FickleStoreWorker
from kv_contents import KVContents
from kv_memory import KVMemory

from quire.engine.kv_cache.block_pool import BlockPool
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
    WorkerControl,
)

CURSED = 9  # a token that the model cannot compute
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
    has_failed: bool = False

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.given.num_prompt_tokens


@dataclass
class Flight:
    """A step that was launched and not collected."""

    plan: StepPlan
    result: StepResult
    slots: set[int] = field(default_factory=set)
    blocks: set[int] = field(default_factory=set)  # that it reads or writes
    written: set[int] = field(default_factory=set)


class CheckingExecutor(Worker, StepRunner):
    """One worker whose model draws what `KVContents` says, and that trusts no plan.

    Args:
        memory: Under the blocks.
        pool: To see that nobody writes what others may read.
        store: The worker's half of a KV store.

    Attributes:
        salts: The cache salt of each request, by its seed; the worker is not told.
        bound: Seeds of the requests with a grammar.
        limits: By seed too, the tokens that are computed at most.
        epoch: How often the prefix cache was reset.
        max_accepted: Drafts that are accepted in a step, at most.
        failing_seed: Of a request whose next share fails.
        interrupted_verb: Whose next call is interrupted; what is in flight is lost then.
    """

    def __init__(
        self, memory: KVMemory, pool: BlockPool, store: FickleStoreWorker | None = None
    ) -> None:
        self.memory = memory
        self.contents: KVContents = memory.contents
        self.pool = pool
        self.store = store
        self.rows: dict[int, Row] = {}
        self.flights: deque[Flight] = deque()
        self.salts: dict[int, str | None] = {}
        self.limits: dict[int, int] = {}
        self.epoch = 0
        self.max_accepted = 99
        self.failing_seed: int | None = None
        self.interrupted_verb = ""
        self.last_plan: StepPlan | None = None
        self.bound: set[int] = set()
        self._unmasked: set[int] = set()

    def load(self) -> Any:
        raise NotImplementedError

    def allocate(self, plans: Sequence[Any]) -> StepRunner:
        raise NotImplementedError

    def execute(self, plan: StepPlan) -> None:
        self._may_be_interrupted("execute")
        flight = Flight(plan, StepResult(plan_id=plan.plan_id, results=[]))
        for given in plan.assignments:
            self._assign(given)
        for added in plan.new_blocks:
            self.rows[added.slot].blocks[added.group] += added.block_ids
        if self.store is not None:
            self.store.begin_step(plan)
        for share in plan.requests:
            if share.slot in flight.slots:
                raise AssertionError(f"slot {share.slot} has two shares in one step")
            flight.slots.add(share.slot)
            self._compute(share, flight)
        self.flights.append(flight)
        self.last_plan = plan

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        self._may_be_interrupted("sample")
        flight = self.flights[-1]
        if flight.plan.plan_id != plan_id:
            raise AssertionError("a step is sampled that is not the last one launched")
        self._check_masks(flight, masks)
        rows = [self._result(share, flight) for share in flight.plan.requests]
        report = None if self.store is None else self.store.report()
        results = [row for row in rows if row is not None]
        flight.result = StepResult(plan_id=plan_id, results=results, transfers=report)

    def collect(self, plan_id: int) -> StepResult:
        self._may_be_interrupted("collect")
        flight = self.flights.popleft()
        if flight.plan.plan_id != plan_id:
            raise AssertionError("steps are collected out of order")
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

    def _assign(self, given: SlotAssignment) -> None:
        if any(given.slot in flight.slots for flight in self.flights):
            raise AssertionError(f"slot {given.slot} is given away while a step uses it")
        adapter = "" if given.adapter is None else given.adapter.content_hash
        root = self.contents.root(adapter, self.salts[given.seed])
        path = self.contents.path(root, given.token_ids)
        blocks = [list(ids) for ids in given.block_ids]
        self.rows[given.slot] = Row(
            given, path, list(given.token_ids), blocks, given.num_computed_tokens, self.epoch
        )

    def _compute(self, share: ScheduledRequest, flight: Flight) -> None:
        row = self.rows[share.slot]
        start, end = row.computed, row.computed + share.num_tokens
        if end > self.limits[row.given.seed]:
            raise AssertionError(f"{share} computes more than the longest answer needs")
        self._check_share(row, share, end)
        drafts = self.contents.path(row.path[-1], share.draft_token_ids)[1:]
        path = row.path + drafts
        row.has_failed |= self.failing_seed == row.given.seed or CURSED in row.tokens[start:end]
        for group, table in enumerate(row.blocks):
            blocks = self.memory.blocks_used(group, table, start, end)
            flight.blocks.update(blocks)
            flight.written.update(self._written(group, table, start, end))
            if not row.has_failed:
                self.memory.check_read(group, table, path, start, end, row.epoch)
            self._check_written(group, table, start, end)
            self.memory.write(group, table, path, start, end, row.epoch)
            if row.has_failed:
                self.memory.spoil(self._written(group, table, start, end))
        row.computed = end
        if self.failing_seed == row.given.seed:
            self.failing_seed = None

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
        self._unmasked = {self.rows[slot].given.seed for slot in drawing - masked} & self.bound

    def _result(self, share: ScheduledRequest, flight: Flight) -> SlotResult | None:
        row = self.rows[share.slot]
        start = row.computed - share.num_tokens
        if row.has_failed:
            self._draw(row, share)  # as a model does, whatever the numbers are
            return SlotResult(share.slot, [], None, ErrorReport("request_failed", "cursed"))
        tokens = self._draw(row, share)
        logprobs = self._prompt_logprobs(row, start, share.num_tokens)
        if not tokens and logprobs is None:
            return None
        return SlotResult(share.slot, tokens, prompt_logprobs=logprobs)

    def _draw(self, row: Row, share: ScheduledRequest) -> list[int]:
        """Draw one token, and one more behind each draft that is what would have been drawn."""
        if not share.num_samples:
            return []
        drawn = [self._draw_one(row)]
        for draft in share.draft_token_ids[: self.max_accepted]:
            if draft != drawn[-1]:
                break
            drawn.append(self._draw_one(row))
        row.computed = len(row.tokens) - 1 if share.draft_token_ids else row.computed
        return drawn

    def _draw_one(self, row: Row) -> int:
        given = row.given
        forbidden = given.stop_token_ids if row.num_generated < given.min_tokens else ()
        token = self.contents.sampled(row.path[-1], given.child, forbidden)
        if given.seed in self._unmasked:
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
