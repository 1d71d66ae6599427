"""A part that raises hurts the request that made it raise, and no other."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from torch import Tensor

from quire import LLM, SamplingParams, __version__
from quire.errors import AdapterError, EngineDeadError
from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire.messages import AdapterRef, StepPlan
from quire.testing.checkpoints import write_checkpoint
from quire.worker.model_runner import ModelRunner
from quire.worker.sampling.sampled_tokens import SampledTokens

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
POISON = 7


class RaisesForSomeRows(LogitsProcessor):
    """Stands where `temperature` stood: fails for a batch that holds a cursed row."""

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        return False

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:
        if (rows.field("top_k") == POISON).any():
            raise ZeroDivisionError("cursed row")
        return logits


@pytest.fixture(params=["auto"])
def llm(request, tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    with LLM(str(folder), max_model_len=64, kernels=request.param) as llm:
        yield llm


def runner_of(llm: LLM) -> ModelRunner:
    return llm._running.core.runner


def run(llm: LLM, params: list[SamplingParams]) -> dict[int, str]:
    """Finish reasons by prompt index, past the frontend, which would raise the first error."""
    core = llm._running.core
    names = {}
    for index, each in enumerate(params):
        (request,) = llm._running.intake.admit("abc"[index], each).requests
        names[request.request_id] = index
        core.add(request)
    reasons = {}
    while core.has_work():
        for output in core.step().outputs:
            if output.finish_reason:
                message = output.error.message if output.error else ""
                reasons[names[output.request_id]] = f"{output.finish_reason} {message}".strip()
    return reasons


@pytest.mark.parametrize("llm", ["torch"], indirect=True)  # with a sampler that fuses no step
def test_a_sampler_that_raises_for_one_row_fails_that_request(llm):
    pipeline = runner_of(llm).pipeline
    index = [type(step).__name__ for step in pipeline.steps].index("Temperature")
    pipeline.steps[index] = RaisesForSomeRows(320, torch.device("cpu"))
    normal = SamplingParams(temperature=1.0, max_tokens=4, ignore_eos=True)
    cursed = SamplingParams(temperature=1.0, top_k=POISON, max_tokens=4, ignore_eos=True)
    reasons = run(llm, [normal, cursed, normal])
    assert reasons == {
        0: "length",
        1: f"error sampler 'temperature' of plugin quire_samplers (quire {__version__}) failed: "
        "ZeroDivisionError",
        2: "length",
    }
    assert llm.stats().num_used_blocks == 0


class FailsForBatches:
    """Replaces a runner's layers; records the number of tokens of each call."""

    def __init__(self, runner: ModelRunner) -> None:
        self.compute = runner.stage_forward.compute
        self.counts: list[int] = []
        runner.stage_forward.compute = self
        runner.graphs = None  # which has the layers themselves

    def __call__(self, input_ids, positions, batch, received):
        self.counts.append(len(input_ids))
        if len(input_ids) > 1:
            raise RuntimeError("too many")
        return self.compute(input_ids, positions, batch, received)


def test_a_forward_pass_that_fails_for_a_batch_is_tried_one_by_one(llm):
    expected = [output.outputs[0].token_ids for output in llm.generate(["a", "b", "c"], GREEDY)]
    model = FailsForBatches(runner_of(llm))
    outputs = llm.generate(["a", "b", "c"], GREEDY)
    assert model.counts[:4] == [3, 1, 1, 1]
    assert [output.outputs[0].token_ids for output in outputs] == expected


def test_logits_of_nan_fail_their_request_only(llm):
    runner_of(llm).graphs = None  # which have the head themselves
    model = runner_of(llm).model
    compute = model.compute_logits
    calls = iter(range(1000))

    def poisoned(rows):
        logits = compute(rows)
        if next(calls) == 1 and len(logits) == 3:
            logits[1] = torch.nan
        return logits

    model.compute_logits = poisoned
    reasons = run(llm, [GREEDY, GREEDY, GREEDY])
    assert reasons[1].startswith("error no token can be sampled for this request")
    assert (reasons[0], reasons[2]) == ("length", "length")


@NEEDS_COMPILER
def test_replayed_logits_of_nan_fail_their_request_only(llm):
    graphs = runner_of(llm).graphs
    replay = graphs.replay
    calls = iter(range(1000))

    def poisoned(step, num_requests, received):
        computed = replay(step, num_requests, received)
        if next(calls) == 1 and num_requests == 3:
            step.logits[1] = torch.nan
        return computed

    graphs.replay = poisoned
    reasons = run(llm, [GREEDY, GREEDY, GREEDY])
    assert next(calls) > 3
    assert reasons[1].startswith("error no token can be sampled for this request")
    assert (reasons[0], reasons[2]) == ("length", "length")


def test_an_adapter_source_that_raises_fails_its_request_only(llm):
    class BrokenManager:
        def load(self, ref, in_use):
            raise KeyError("half a file")

        def batch(self, indexes, query_lens):
            return None

    runner = runner_of(llm)
    runner.adapters = BrokenManager()
    core, intake = llm._running.core, llm._running.intake
    adapter = AdapterRef("a", "nowhere", "a hash")
    (bad,) = intake.admit("a", GREEDY, adapter=adapter).requests
    (good,) = intake.admit("b", GREEDY).requests
    core.add(bad)
    core.add(good)
    reasons = {}
    while core.has_work():
        for output in core.step().outputs:
            if output.finish_reason:
                reasons[output.request_id] = (output.finish_reason, output.error)
    assert reasons[good.request_id] == ("length", None)
    assert reasons[bad.request_id][1].message == "loading the adapter failed: KeyError"


def test_a_completion_continues_as_it_does_after_its_own_prefix(llm):
    (whole,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], GREEDY)
    token_ids = list(whole.outputs[0].token_ids)
    assert len(set(token_ids)) > 1
    for count in (1, 4):
        prompt = {"prompt_token_ids": [5, 6, 7, *token_ids[:count]]}
        (rest,) = llm.generate([prompt], GREEDY)
        assert list(rest.outputs[0].token_ids)[: 6 - count] == token_ids[count:]


def test_two_requests_that_fail_together_are_both_tried_alone(llm):
    model = FailsForBatches(runner_of(llm))
    assert run(llm, [GREEDY, GREEDY]) == {0: "length", 1: "length"}
    assert model.counts[:3] == [2, 1, 1]


class NotingManager:
    """Has no adapters; records the requested ones, and fails for one name."""

    def __init__(self):
        self.in_use = []

    def load(self, ref, in_use):
        if ref.name == "absent":
            raise AdapterError("adapter 'absent' is nowhere")
        self.in_use.append(set(in_use))
        return -1

    def batch(self, indexes, query_lens):
        return None


def test_adapters_of_one_step_are_not_evicted_and_one_that_fails_is_not_computed(llm):
    runner = runner_of(llm)
    manager = runner.adapters = NotingManager()
    runner.graphs = None  # which build no inputs
    core, intake = llm._running.core, llm._running.intake
    refs = [AdapterRef(name, name, name) for name in ("one", "other", "absent")]
    requests = [intake.admit("a", GREEDY, adapter=ref).requests[0] for ref in refs]
    computed = []
    inputs_of = runner.inputs_of
    runner.inputs_of = lambda requests: computed.append(len(requests)) or inputs_of(requests)
    for request in requests:
        core.add(request)
    errors = {}
    while core.has_work():
        for output in core.step().outputs:
            if output.error is not None:
                errors[output.request_id] = output.error
    assert list(errors) == [requests[2].request_id]
    assert errors[requests[2].request_id].code == "adapter_error"
    assert "is nowhere" in errors[requests[2].request_id].message
    assert set(refs[:2]) <= manager.in_use[0] == manager.in_use[1]
    assert max(computed) == 2


def test_a_value_that_no_field_can_hold_fails_its_request_only(llm):
    core, intake = llm._running.core, llm._running.intake
    (bad,) = intake.admit("a", SamplingParams(temperature=0)).requests
    msgspec.structs.force_setattr(bad.params, "temperature", 1e300)
    (good,) = intake.admit("b", GREEDY).requests
    core.add(bad)
    core.add(good)
    outcomes = {}
    while core.has_work():
        for output in core.step().outputs:
            if output.finish_reason:
                outcomes[output.request_id] = output.error
    assert outcomes[good.request_id] is None
    assert outcomes[bad.request_id].message.startswith("reading the sampler fields failed: Float")


def test_plans_are_sampled_and_collected_in_their_order(llm):
    runner = runner_of(llm)
    with pytest.raises(RuntimeError, match="plan 901 is not the one that was launched"):
        runner.sample(901, ())
    runner.execute(StepPlan(plan_id=902, requests=[]))
    with pytest.raises(RuntimeError, match="plan 903 is not the one that was launched"):
        runner.sample(903, ())
    for plan_id in (904, 905):
        runner.execute(StepPlan(plan_id=plan_id, requests=[]))
        runner.sample(plan_id, ())
    assert runner.collect(905).plan_id == 905, "the one before was never collected"
    with pytest.raises(RuntimeError, match="plan 904 is not the one to collect"):
        runner.collect(904)


def test_a_step_that_fails_after_sampling_is_sampled_again_at_the_same_positions(llm, monkeypatch):
    expected = [output.outputs[0].token_ids for output in llm.generate(["a", "b", "c"], GREEDY)]
    start_copy = SampledTokens.start_copy
    failures = []

    def fails_for_batches(sampled, copier):
        if len(sampled.token_ids) > 1:
            failures.append(len(sampled.token_ids))
            raise RuntimeError("no page-locked memory")
        start_copy(sampled, copier)

    monkeypatch.setattr(SampledTokens, "start_copy", fails_for_batches)
    outputs = llm.generate(["a", "b", "c"], GREEDY)
    assert len(failures) >= 5
    assert [output.outputs[0].token_ids for output in outputs] == expected


def illegal(*_):
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def break_forward(runner, monkeypatch):
    monkeypatch.setattr(runner, "_forward", illegal)


def break_sampling(runner, monkeypatch):
    monkeypatch.setattr(runner.pipeline.sampler, "sample", illegal)


def break_copy(runner, monkeypatch):
    monkeypatch.setattr(SampledTokens, "read", illegal)


@pytest.mark.parametrize("breaks", [break_forward, break_sampling, break_copy])
def test_a_device_that_failed_is_not_tried_again_and_ends_the_engine(
    llm, monkeypatch, caplog, breaks
):
    runner_of(llm).graphs = None  # which have the sampler themselves
    breaks(runner_of(llm), monkeypatch)
    with pytest.raises(EngineDeadError, match="an illegal memory access"):
        llm.generate(["a", "b", "c"], GREEDY)
    assert not caplog.records, "no request was computed alone"
    monkeypatch.undo()
    with pytest.raises(EngineDeadError, match="an illegal memory access"):
        llm.generate(["a"], GREEDY)


def test_a_request_beside_an_unfinished_prompt_samples_its_own_token(tmp_path):
    folder = str(write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder)
    prompts = [list(range(10, 40)), [5, 6, 7]]
    with LLM(folder, max_model_len=64, max_num_batched_tokens=8) as llm:
        alone = [llm.generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in prompts]
        together = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    assert together == alone
