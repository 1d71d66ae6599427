"""Workers of a pretended model that keep what each place of the KV cache holds."""

from engine_parts import BLOCK_SIZE, CountingExecutor

from quire.errors import StepFailedError
from quire.messages import ErrorReport, SlotResult, StepPlan, StepResult


class KeepingExecutor(CountingExecutor):
    """Workers whose rows are checked: each must read the KV of its own tokens."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        super().__init__(vocab_size)
        self.seed = seed
        self.num_computed = 0
        self.failing_slot: int | None = None
        self.fails_once = False
        self.has_failed = False
        self._held: dict[tuple[int, int], tuple[int, ...]] = {}  # block, place -> tokens so far

    def execute(self, plan: StepPlan) -> None:
        for copy in (each for given in plan.assignments for each in given.block_copies):
            for offset in range(BLOCK_SIZE):
                self._held.pop((copy.target, offset), None)
                if (copy.source, offset) in self._held:
                    self._held[copy.target, offset] = self._held[copy.source, offset]
        for patch in plan.token_patches:
            self.tokens[patch.slot][patch.position :] = patch.token_ids
        super().execute(plan)
        for entry in plan.requests:
            end, tokens = self.computed[entry.slot], self.tokens[entry.slot]
            for position in range(end - entry.num_tokens, end):
                place = self._place(entry.slot, position)
                self._held[place] = tuple(tokens[: position + 1])
            self.num_computed += entry.num_tokens

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        index, offset = divmod(position, BLOCK_SIZE)
        return self.blocks[slot][0][index], offset

    def collect(self, plan_id: int) -> StepResult:
        result = super().collect(plan_id)
        if self.fails_once:
            self.fails_once, self.has_failed = False, True
            self.plans.clear()
            self.results.clear()
            raise StepFailedError("two workers failed", plan_id=plan_id)
        return result

    def _check_reads(self, slot: int) -> None:
        """Check that the blocks of a slot hold the KV of its tokens."""
        tokens = self.tokens[slot]
        for position in range(self.computed[slot]):
            held = self._held.get(self._place(slot, position))
            if held != tuple(tokens[: position + 1]):
                raise AssertionError(f"slot {slot} reads the KV of other tokens at {position}")

    def _failure(self, slot: int) -> SlotResult:
        """Return the row of a slot that fails; the device has appended a token nevertheless."""
        self.tokens[slot].append(0)
        return SlotResult(slot, [], None, ErrorReport("request_failed", f"slot {slot} failed"))
