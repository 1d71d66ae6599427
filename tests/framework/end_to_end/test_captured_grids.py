"""Captured steps of ranks and stages, kernel for kernel: the tokens are those of one worker.

A captured step is recorded operator by operator and collective by collective, and replayed exactly.
"""

import pytest
from grid_engine import Grid, grid_engine
from grid_scenarios import check_digests, check_same, request, tokens
from recorded_engine import AS_ON_A_GPU
from recorded_runs import RecordedGroup, RecordedRuns

from quire.errors import RefusedError
from quire.machine.machine import interprets_kernels
from quire.testing.checkpoints import write_checkpoint
from quire.worker import runner_builder

pytestmark = [
    pytest.mark.skipif(not interprets_kernels(), reason="kernels run on the GPU: see tests/gpu"),
    # Rows of padding hold anything, and numpy warns where a kernel multiplies it.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

SIZES = {"max_model_len": 32, "max_num_seqs": 4, "block_size": 16}
GRIDS = [
    Grid(2),
    Grid(1, (0, 1)),
    pytest.param(Grid(2, (0, 1)), marks=pytest.mark.slow),
    pytest.param(Grid(1, (0, 1, 2)), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("m"),
        "Qwen3ForCausalLM",
        seed=11,
        head_dim=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
    ).folder


def requests():
    """Three requests at first, in a step of four, and one at last; `b` is sampled eagerly."""
    return [
        request("a", tokens(5), max_tokens=6, logprobs=None),
        request("b", tokens(3, 2), max_tokens=3),
        request("c", tokens(9, 3), max_tokens=4, logprobs=None, temperature=0.9),
    ]


@pytest.fixture(scope="module")
def expected(folder):
    with grid_engine(folder, Grid(), **AS_ON_A_GPU, **SIZES) as engine:
        return engine.run(requests())


@pytest.fixture
def recorded(monkeypatch):
    """Recordings of the ranks, as they begin."""
    found = []

    def step_capture(device):
        found.append(RecordedRuns())
        return found[-1]

    monkeypatch.setattr(runner_builder, "step_capture", step_capture)
    # Stages share the requests, so that most steps have one or two: let one be padded.
    monkeypatch.setattr(runner_builder, "graph_sizes", lambda largest: [2, largest])
    return found


def captured_engine(folder, grid, **options):
    options = AS_ON_A_GPU | SIZES | {"enforce_eager": False} | options
    return grid_engine(folder, grid, wrap_group=RecordedGroup, **options)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_captured_steps_generate_what_one_worker_does(folder, expected, recorded, grid):
    with captured_engine(folder, grid) as engine:
        assert [len(runner.graphs.sizes) for runner in engine.runner.runners] == [2] * len(recorded)
        found = engine.run(requests())
        check_digests(engine)
    check_same(found, expected)
    for runs in recorded:
        assert runs.is_finished
    for rank, runner in enumerate(engine.runner.runners):
        assert bool(runner.stage.is_last) == (rank >= len(recorded) - grid.tp_size)
    num_replays = sorted((len(runs.num_replays), runs.num_replays) for runs in recorded)
    *earlier, last = [each for _, each in num_replays]
    assert sum(last[::2]) >= 5, "steps of the last stage, each with its sampling"
    assert 0 < sum(last[1::2]) < sum(last[::2])
    for each in earlier:
        assert sum(each[:: 2 if len(each) == 4 else 1]) == sum(last[::2]), "all replay a step"


class CannotEnd(RecordedRuns):
    """Cannot end the capture of the second function; recording it has run its collectives."""

    def capture(self, run):
        captured = super().capture(run)
        if len(self.num_replays) == 2:
            raise RuntimeError("a part that waits")
        return captured


@pytest.fixture
def failing(monkeypatch):
    """The second rank to begin cannot capture a part."""
    begun = []

    def step_capture(device):
        begun.append(CannotEnd() if begun else RecordedRuns())
        return begun[-1]

    monkeypatch.setattr(runner_builder, "step_capture", step_capture)


def test_ranks_have_no_graphs_if_one_of_them_cannot_capture_a_step(
    folder, expected, failing, caplog
):
    with captured_engine(folder, Grid(2)) as engine:
        assert [runner.graphs for runner in engine.runner.runners] == [None, None]
        check_same(engine.run(requests()), expected)
    warnings = sorted(each.message for each in caplog.records if each.levelname == "WARNING")
    assert len(warnings) == 2
    assert "RuntimeError: a part that waits" in warnings[0]
    assert "cannot be captured on another tensor-parallel rank" in warnings[1]


def test_ranks_refuse_together_what_one_of_them_cannot_capture(folder, failing):
    with (
        pytest.raises(RefusedError, match=r"a part that waits|another tensor-parallel rank"),
        captured_engine(folder, Grid(2), max_cuda_graph_size=2),
    ):
        pass


def test_stages_capture_each_for_itself(folder, expected, failing):
    with captured_engine(folder, Grid(1, (0, 1))) as engine:
        graphs = [runner.graphs for runner in engine.runner.runners]
        assert len([each for each in graphs if each is None]) == 1
        check_same(engine.run(requests()), expected)


class FailsToWarmUp(RecordedRuns):
    def warm_up(self, run):
        raise RuntimeError("no workspace")


def test_a_warm_up_that_fails_on_one_rank_ends_the_start(folder, monkeypatch):
    """The others are within its collectives, so none of them may go on without it."""
    monkeypatch.setattr(runner_builder, "step_capture", lambda device: FailsToWarmUp())
    with pytest.raises(RefusedError, match="no workspace"), captured_engine(folder, Grid(2)):
        pass
