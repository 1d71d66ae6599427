"""A worker is one rank of a grid: together they compute what a single one computes."""

import re
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from grid_engine import Grid, GridEngine, grid_engine
from grid_scenarios import (
    SCENARIOS,
    SHAPES,
    Outcome,
    adapter,
    check_digests,
    check_same,
    request,
    run_scenario,
    tokens,
    write_shape,
)

import quire_demo
from quire.errors import AdapterError, StepFailedError
from quire.messages import StepPlan
from quire.testing.checkpoints import WrittenCheckpoint
from quire.testing.model.threaded_ranks import ThreadedGroup, ThreadedLink
from quire.worker.batch.slots import SlotTables
from quire.worker.worker import ModelWorker

PLAIN = {"kernels": "torch"}
GRIDS = [
    Grid(tp_size, starts)
    for starts in ((0,), (0, 2))
    for tp_size in (1, 2, 4)
    if tp_size > 1 or starts != (0,)
]
BOTH = Grid(2, (0, 2))
DEMO = Path(quire_demo.__file__).parent / "checkpoint"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, WrittenCheckpoint]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {shape: write_shape(folder / shape, shape) for shape in SHAPES}


@pytest.fixture(scope="module")
def alone(checkpoints):
    """What a single worker returns for a scenario."""
    found: dict[tuple[str, str], Outcome] = {}

    def outcome(shape: str, scenario: str) -> Outcome:
        key = (shape, scenario)
        if key not in found:
            found[key] = run_scenario(checkpoints[shape].folder, scenario, Grid(), **PLAIN)
        return found[key]

    return outcome


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_grid_computes_what_one_worker_computes(checkpoints, alone, grid):
    found = run_scenario(checkpoints["llama"].folder, "mixed", grid, **PLAIN)
    check_same(found, alone("llama", "mixed"))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "llama"])
def test_every_architecture_can_be_sharded_and_staged(checkpoints, alone, shape):
    found = run_scenario(checkpoints[shape].folder, "mixed", BOTH, **PLAIN)
    check_same(found, alone(shape, "mixed"))


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "mixed"])
def test_every_feature_works_on_stages_with_shards(checkpoints, alone, scenario):
    found = run_scenario(checkpoints["qwen3"].folder, scenario, BOTH, **PLAIN)
    check_same(found, alone("qwen3", scenario))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("grid", [*GRIDS, Grid(2, (0, 1, 2))], ids=str)
def test_every_feature_of_every_architecture_works_on_every_grid(
    checkpoints, alone, grid, shape, scenario
):
    found = run_scenario(checkpoints[shape].folder, scenario, grid, **PLAIN)
    check_same(found, alone(shape, scenario))


@NEEDS_COMPILER
@pytest.mark.parametrize("quantization", ["float32", "bf16"])
def test_native_kernels_and_packed_weights_may_be_sharded_and_staged(checkpoints, quantization):
    folder = checkpoints["qwen3"].folder
    options = {"kernels": "native", "quantization": quantization}
    expected = run_scenario(folder, "mixed", Grid(), **options)
    check_same(run_scenario(folder, "mixed", BOTH, **options), expected)


@NEEDS_COMPILER
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_that_are_rounded_in_groups_have_as_large_an_error_in_shards(
    checkpoints, quantization
):
    """A shard has other groups than the whole matrix where it has a part of the columns."""
    folder, options = checkpoints["qwen3"].folder, {"kernels": "native"}
    exact = prompt_logprobs(folder, Grid(), quantization="float32", **options)
    alone, sharded = (
        (prompt_logprobs(folder, grid, quantization=quantization, **options) - exact).abs().mean()
        for grid in (Grid(), BOTH)
    )
    assert 0.7 * alone < sharded < 1.3 * alone


def prompt_logprobs(folder: Path, grid: Grid, **options) -> torch.Tensor:
    return torch.tensor(run_requests(folder, grid, **options)["a"].logprobs("prompt_logprobs"))


def run_requests(folder: Path, grid: Grid, **options) -> Outcome:
    with grid_engine(folder, grid, **options) as engine:
        return engine.run([request("a", tokens(40), prompt_logprobs=0)])


def test_the_demo_may_be_sharded_and_staged():
    found, expected = (run_requests(DEMO, grid, **PLAIN) for grid in (BOTH, Grid()))
    check_same(found, expected)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_ranks_of_a_group_have_the_same_bits(checkpoints, batch_invariant):
    options = {**PLAIN, "batch_invariant": batch_invariant}
    with grid_engine(checkpoints["llama"].folder, Grid(4, (0, 2)), **options) as engine:
        seen = record_hidden_states(engine)
        engine.run([request("a", tokens(20)), request("b", tokens(7), temperature=1.0)])
        check_digests(engine)
    for first, *others in (seen[:4], seen[4:]):
        assert len(first) >= 10
        for other in others:
            assert len(other) == len(first)
            assert all(map(torch.equal, other, first))


def test_all_stages_count_the_same_tokens(checkpoints):
    with grid_engine(checkpoints["llama"].folder, Grid(1, (0, 1, 2)), **PLAIN) as engine:
        engine.run([request("a", tokens(20)), request("b", tokens(7))])
        tables = [runner.tables for runner in engine.runner.runners]
    assert sorted(tables[0].num_known[:2].tolist()) == [17, 30]
    for other in tables[1:]:
        assert (other.num_known == tables[0].num_known).all()
        assert (other.num_computed == tables[0].num_computed).all()


def record_hidden_states(engine: GridEngine) -> list[list[torch.Tensor]]:
    """Record what the forward pass of each rank returns."""
    found: list[list[torch.Tensor]] = []
    for runner in engine.runner.runners:
        found.append([])
        forward = runner.stage_forward
        forward.send = partial(record, forward.send, found[-1])
    return found


def record(send, seen, *args):
    hidden_states = send(*args)
    seen.append(hidden_states.clone())
    return hidden_states


def test_a_patch_of_a_token_that_a_worker_has_changes_nothing(checkpoints, alone):
    with grid_engine(checkpoints["llama"].folder, Grid(), **PLAIN) as engine:
        engine.runner.adds_patches = True
        found = SCENARIOS["chunked"].run(engine, checkpoints["llama"].folder)
        assert engine.runner.num_patches > 20
    check_same(found, alone("llama", "chunked"))


def test_stages_of_a_tied_head_have_the_embedding_twice_and_others_only_once(checkpoints):
    """And no stage has layers, or a KV cache, of another one."""
    for shape, is_tied in (("llama", False), ("qwen2", True)):
        with grid_engine(checkpoints[shape].folder, Grid(1, (0, 1, 2)), **PLAIN) as engine:
            names = [dict(worker._model.named_parameters()) for worker in engine.workers]
        has_embedding = ["model.embed_tokens.weight" in each for each in names]
        assert has_embedding == [True, False, is_tied]
        assert ["model.norm.weight" in each for each in names] == [False, False, True]
        for index, (each, plan) in enumerate(zip(names, engine.plans, strict=True)):
            assert {name.split(".")[2] for name in each if ".layers." in name} == {str(index)}
            (tensor,) = plan.tensors
            assert tensor.layer_names == (f"model.layers.{index}.self_attn.attention",)


def swap_shards(monkeypatch):
    """The ranks have each other's inputs of one product."""

    def swap(worker, model):
        layer = next(iter(model.model.layers.values())).mlp.down_proj
        size = len(layer.columns)
        start = (1 - worker.group.rank) * size
        layer.columns = range(start, start + size)

    change_models(monkeypatch, swap)


def skip_first_layer(monkeypatch):
    """The second stage leaves out its first layer."""

    def skip(worker, model):
        if worker.stage.index == 1:
            model.model._layers_with_rope = model.model._layers_with_rope[1:]

    change_models(monkeypatch, skip)


def change_models(monkeypatch, change):
    make = ModelWorker._make_model

    def changed(worker, context):
        model = make(worker, context)
        change(worker, model)
        return model

    monkeypatch.setattr(ModelWorker, "_make_model", changed)


def leave_out_a_sum(monkeypatch):
    """The fifth sum of each step of five is not taken."""
    all_reduce = ThreadedGroup.all_reduce

    def sum_most(group, x):
        total = all_reduce(group, x.clone())
        return x if group.num_sums % 5 == 0 else total

    monkeypatch.setattr(ThreadedGroup, "all_reduce", sum_most)


def drop_patches(monkeypatch):
    """The first stage is not told the tokens that were sampled."""
    monkeypatch.setattr(SlotTables, "patch_tokens", lambda tables, patch: None)


def keep_sent_tensors(monkeypatch):
    """A link gives what was sent in the step before."""
    receive, last = ThreadedLink.receive, {}

    def late(link, num_tokens):
        now = receive(link, num_tokens)
        before = last.get((link, num_tokens), now)
        last[link, num_tokens] = now
        return before

    monkeypatch.setattr(ThreadedLink, "receive", late)


MUTANTS = (swap_shards, skip_first_layer, leave_out_a_sum, drop_patches, keep_sent_tensors)


@pytest.mark.parametrize("mutate", MUTANTS)
def test_a_grid_that_computes_something_else_is_noticed(checkpoints, alone, mutate, monkeypatch):
    expected = alone("llama", "several")
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check_same(run_scenario(checkpoints["llama"].folder, "several", BOTH, **PLAIN), expected)


def test_a_rank_with_other_seeds_is_noticed_by_its_digest(checkpoints):
    """The engine takes the tokens of another rank, and sees nothing else.

    Nucleus sampling needs the whole logits: each rank samples by itself.
    """
    with grid_engine(checkpoints["llama"].folder, BOTH, **PLAIN) as engine:
        last = engine.runner.runners[-1]
        execute = last.execute
        last.execute = lambda plan: execute(with_other_seeds(plan))
        engine.run([request("a", tokens(8), temperature=1.0, top_p=0.99)])
        assert len({digest for digest, _ in engine.runner.digests}) == 10
        assert any(one != other for one, other in engine.runner.digests)


def with_other_seeds(plan: StepPlan) -> StepPlan:
    others = [msgspec.structs.replace(given, seed=given.seed + 1) for given in plan.assignments]
    return msgspec.structs.replace(plan, assignments=others)


def break_forward(runner):
    def fails(*args):
        raise ZeroDivisionError("no body")

    runner.stage_forward.compute = fails


def break_sampling(runner):
    def fails(*args):
        raise ZeroDivisionError("no sampler")

    runner.pipeline.run = fails


def break_fields(runner):
    def fails(fields, **_):
        raise ZeroDivisionError("no fields")

    runner.pipeline.active_steps = fails


def break_adapters(runner):
    def fails(ref, in_use):
        raise AdapterError("no adapter")

    runner.adapters.load = fails


BROKEN = {
    "forward": (break_forward, r"the forward pass of .* failed: ZeroDivisionError", 0),
    "sampling": (break_sampling, "sampling failed: ZeroDivisionError", 0),
    "fields": (break_fields, "reading the sampler fields failed: ZeroDivisionError", 2),
    "adapters": (break_adapters, "no adapter", 1),
}


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("case", BROKEN)
def test_one_rank_of_several_reports_a_failure_and_tries_nothing_again(checkpoints, case, rank):
    break_rank, message, num_slots = BROKEN[case]
    if case == "sampling" and rank == 1:
        return  # an earlier stage does not sample
    folder = checkpoints["llama"].folder
    with grid_engine(folder, BOTH, enable_lora=True, **PLAIN) as engine:
        break_rank(engine.runner.runners[rank])
        engine.add(request("base", tokens(8)))
        engine.add(request("adapted", tokens(8, 2), adapter=adapter(folder, 0)))
        failure = first_failure(engine)
        assert re.match(message, str(failure))
        assert len(failure.slots) == num_slots
        assert failure.report is not None
        assert failure.report.message == str(failure)
        is_computed = engine.runner.runners[rank].tables.num_computed.any()
        assert is_computed == (case == "sampling")


def first_failure(engine: GridEngine) -> StepFailedError:
    """Take steps until one fails."""
    for _ in range(3):
        engine.core.step()
        if engine.runner.failures:
            return engine.runner.failures[0]
    raise AssertionError("no step has failed")


def test_a_failure_names_the_slot_where_the_step_has_one_request(checkpoints):
    with grid_engine(checkpoints["llama"].folder, BOTH, **PLAIN) as engine:
        break_forward(engine.runner.runners[2])
        engine.add(request("base", tokens(8)))
        failure = first_failure(engine)
        assert failure.slots == {0: failure.report}
        assert failure.report is not None
        assert "no body" in (failure.report.cause or "")
