"""Results of a step from every rank, as the one result that the engine applies."""

from collections.abc import Mapping

import msgspec

from quire.interfaces.executor import WorkerGrid
from quire.messages import SlotResult, StepResult, TransferReport


class RankResults:
    """The results of the steps in flight, rank by rank.

    Args:
        grid: Grid of the ranks.
    """

    def __init__(self, grid: WorkerGrid) -> None:
        self._grid = grid
        self._sampling_rank = (grid.pp_size - 1) * grid.tp_size
        self._by_plan: dict[int, dict[int, StepResult]] = {}
        self._transfers = RankTransfers(grid.size)

    def add(self, rank: int, result: StepResult) -> None:
        """Add the result of a rank."""
        self._by_plan.setdefault(result.plan_id, {})[rank] = result
        if result.transfers is not None:
            self._transfers.add(rank, result.transfers)

    def missing(self, plan_id: int) -> list[int]:
        """Return the ranks without a result of a step."""
        found = self._by_plan.get(plan_id, {})
        return [rank for rank in range(self._grid.size) if rank not in found]

    def differing(self, plan_id: int) -> dict[int, int]:
        """Return the digests of the last stage's ranks if they differ, by rank; else nothing."""
        results = self._by_plan[plan_id]
        ranks = range(self._sampling_rank, self._grid.size)
        digests = {rank: results[rank].digest for rank in ranks}
        return digests if len(set(digests.values())) > 1 else {}

    def pop(self, plan_id: int) -> StepResult:
        """Remove a step of which every rank has sent its result, and return the whole result.

        Older steps that were never collected were interrupted; they are dropped.
        """
        for older in [known for known in self._by_plan if known < plan_id]:
            del self._by_plan[older]
        by_rank = self._by_plan.pop(plan_id)
        rows = _with_errors(by_rank, self._sampling_rank)
        return StepResult(plan_id=plan_id, results=rows, transfers=self._transfers.pop())

    def drop(self) -> None:
        """Drop all results: the steps in flight failed. Transfers of a KV store go on."""
        self._by_plan.clear()


def _with_errors(by_rank: Mapping[int, StepResult], sampling_rank: int) -> list[SlotResult]:
    """Return the rows of the sampling rank; a slot that failed on another rank has failed."""
    failed = {
        row.slot: row
        for rank, result in by_rank.items()
        if rank != sampling_rank
        for row in result.results
        if row.error is not None
    }
    rows = by_rank[sampling_rank].results
    if not failed:
        return rows
    kept = [row for row in rows if row.slot not in failed]
    return kept + [msgspec.structs.replace(row, token_ids=[]) for row in failed.values()]


class RankTransfers:
    """Transfers of a KV store: each rank moves its part, so one is done when all ranks are.

    A rank may report one several times, if a step was interrupted.

    Args:
        num_ranks: Number of ranks.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._ended: dict[int, set[int]] = {}  # ranks that have ended a transfer
        self._failed: set[int] = set()

    def add(self, rank: int, report: TransferReport) -> None:
        """Add the report of a rank."""
        self._failed.update(report.failed)
        for transfer in (*report.done, *report.failed):
            self._ended.setdefault(transfer, set()).add(rank)

    def pop(self) -> TransferReport | None:
        """Return the transfers that have ended on all ranks; None if there are none."""
        ended = [each for each, ranks in self._ended.items() if len(ranks) == self._num_ranks]
        if not ended:
            return None
        for transfer in ended:
            del self._ended[transfer]
        failed = [transfer for transfer in ended if transfer in self._failed]
        self._failed.difference_update(failed)
        return TransferReport([each for each in ended if each not in failed], failed)
