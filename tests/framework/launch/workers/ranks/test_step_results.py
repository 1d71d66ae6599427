"""Results of all ranks as one: tokens of the last stage, errors and transfers of every rank."""

from hypothesis import given
from hypothesis import strategies as st

from quire.interfaces.executor import WorkerGrid
from quire.launch.workers.ranks.step_results import RankResults, RankTransfers
from quire.messages import ErrorReport, SlotResult, StepResult, TransferReport

ERROR = ErrorReport("request_failed", "smoke")


def result(*rows, plan_id=1, digest=0, transfers=None):
    return StepResult(plan_id=plan_id, results=list(rows), digest=digest, transfers=transfers)


def test_tokens_are_those_of_the_last_stage():
    results = RankResults(WorkerGrid(tp_size=2, pp_size=2))
    for rank in range(4):
        results.add(rank, result(SlotResult(0, [rank])) if rank > 1 else result())
    assert results.missing(1) == []
    assert results.pop(1).results == [SlotResult(0, [2])]


def test_a_step_is_missing_until_every_rank_has_completed_it():
    results = RankResults(WorkerGrid(tp_size=3))
    results.add(1, result())
    results.add(2, result(plan_id=2))
    assert results.missing(1) == [0, 2]
    assert results.missing(2) == [0, 1]


def test_a_slot_that_failed_on_one_rank_has_failed():
    results = RankResults(WorkerGrid(pp_size=2))
    results.add(0, result(SlotResult(3, [], None, ERROR)))
    results.add(1, result(SlotResult(2, [7]), SlotResult(3, [8])))
    assert results.pop(1).results == [SlotResult(2, [7]), SlotResult(3, [], None, ERROR)]


def test_an_interrupted_step_is_dropped():
    results = RankResults(WorkerGrid())
    results.add(0, result(SlotResult(0, [1]), plan_id=1))
    results.add(0, result(SlotResult(0, [2]), plan_id=2))
    assert results.pop(2).results == [SlotResult(0, [2])]
    assert results.missing(1) == [0]


def test_only_the_last_stage_has_digests_to_compare():
    results = RankResults(WorkerGrid(tp_size=2, pp_size=2))
    for rank, digest in enumerate([1, 2, 5, 5]):
        results.add(rank, result(digest=digest))
    assert results.differing(1) == {}
    for rank, digest in enumerate([5, 5, 5, 6]):
        results.add(rank, result(plan_id=2, digest=digest))
    assert results.differing(2) == {2: 5, 3: 6}


def test_transfers_that_end_late_come_with_a_later_step():
    results = RankResults(WorkerGrid(tp_size=2))
    results.add(0, result(transfers=TransferReport([4], [])))
    results.add(1, result())
    assert results.pop(1).transfers is None
    results.add(0, result(plan_id=2))
    results.add(1, result(plan_id=2, transfers=TransferReport([], [4])))
    assert results.pop(2).transfers == TransferReport([], [4])


@given(st.data())
def test_a_transfer_ends_once_when_every_rank_has_ended_it_and_fails_if_one_failed(data):
    num_ranks = data.draw(st.integers(1, 4))
    ends = {
        (rank, transfer): data.draw(st.booleans())
        for rank in range(num_ranks)
        for transfer in range(data.draw(st.integers(0, 4)))
    }
    transfers = {transfer for _, transfer in ends}
    whole = {t for t in transfers if all((rank, t) in ends for rank in range(num_ranks))}
    open_transfers, done, failed = RankTransfers(num_ranks), [], []
    for (rank, transfer), is_done in data.draw(st.permutations(list(ends.items()))):
        report = TransferReport([transfer], []) if is_done else TransferReport([], [transfer])
        open_transfers.add(rank, report)
        if transfer not in done + failed and data.draw(st.booleans()):
            open_transfers.add(rank, report)  # repeated, as a step was interrupted
        if data.draw(st.booleans()) and (ended := open_transfers.pop()) is not None:
            done, failed = done + ended.done, failed + ended.failed
    if (ended := open_transfers.pop()) is not None:
        done, failed = done + ended.done, failed + ended.failed
    right = {t for t in whole if all(ends[rank, t] for rank in range(num_ranks))}
    assert sorted(done) == sorted(right)
    assert sorted(failed) == sorted(whole - right)
