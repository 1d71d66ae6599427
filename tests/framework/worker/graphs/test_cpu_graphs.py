"""A replayed CPU graph gives the bits of a step through Python, for any requests in it."""

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from adapter_parts import peft_model, save_adapter
from cpp_compilers import NEEDS_COMPILER
from kernel_options import NATIVE
from torch import Tensor

from quire import LLM, SamplingParams
from quire.interfaces.model import ForwardBatch, StageTensors
from quire.layers import SingleDevice, TensorParallelGroup
from quire.messages import ScheduledRequest
from quire.native import tracing
from quire.outputs import LoRARequest
from quire.testing.checkpoints import write_checkpoint
from quire.worker.batch.slots import SlotTables
from quire.worker.graphs import cpu_graphs as cpu_graphs_module
from quire.worker.graphs.cpu_graphs import CPUGraphs, StageLayers
from quire.worker.model_runner import ModelRunner
from quire.worker.sampling.sampling_pipeline import SamplingPipeline
from quire_quantizations.formats import BFLOAT16
from quire_quantizations.packed_weight import PackedWeight
from quire_samplers.gumbel.torch_gumbel import TorchGumbel

pytestmark = NEEDS_COMPILER
TRACED_AT_START = {(count, False) for count in range(1, 9)}
COUNTS = (7, 1, 4, 12, 9)  # tokens of the completions, so the number of requests changes


def runner_of(llm: LLM) -> ModelRunner:
    return llm._running.core.runner


def completions(folder, **options: Any) -> tuple[list[Any], dict[int, Any]]:
    """Return tokens and log-probabilities for random prompts; and the traced steps.

    Requests without log-probabilities are sampled by the graph.
    """
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 200) for _ in range(rng.randrange(1, 50))] for _ in COUNTS]

    def params(**more: Any) -> list[SamplingParams]:
        return [
            SamplingParams(
                temperature=0.8 * (i % 2), seed=i, max_tokens=count, ignore_eos=True, **more
            )
            for i, count in enumerate(COUNTS)
        ]

    with LLM(str(folder), max_model_len=128, **NATIVE | options) as llm:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        found = []
        for given in (params(), params(top_k=5, top_p=0.9), params(logprobs=2), params()):
            for output in llm.generate(inputs, given):
                completion = output.outputs[0]
                found.append((completion.token_ids, completion.logprobs))
        graphs = runner_of(llm).graphs
        return found, {} if graphs is None else dict(graphs._steps)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("LlamaForCausalLM", {}),
        ("Qwen2ForCausalLM", {"quantization": "int8"}),
        ("Qwen3ForCausalLM", {"quantization": "bf16", "kv_cache_dtype": "int8"}),
        ("Gemma3ForCausalLM", {"kv_cache_dtype": "bfloat16"}),  # two groups, two rotations
        ("LlamaForCausalLM", {"quantization": "none"}),
    ],
)
def test_completions_are_those_of_steps_that_are_not_traced(tmp_path, architecture, options):
    folder = write_checkpoint(tmp_path / "m", architecture).folder
    plain, none = completions(folder, enforce_eager=True, **options)
    repeated, steps = completions(folder, **options)
    assert repeated == plain
    assert not none
    is_packed = options.get("quantization") != "none"  # else torch multiplies
    assert set(steps) == (TRACED_AT_START if is_packed else set())
    assert all(step.sample is not None for step in steps.values())


def test_steps_above_the_limit_go_through_python(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_graphs_module, "MAX_REQUESTS", 2)
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    plain, _ = completions(folder, enforce_eager=True)
    repeated, steps = completions(folder)
    assert repeated == plain
    assert set(steps) == {(1, False), (2, False)}


def test_larger_steps_are_traced_when_they_occur(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_graphs_module, "TRACED_AT_START", 1)
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    plain, _ = completions(folder, enforce_eager=True)
    repeated, steps = completions(folder)
    assert repeated == plain
    assert set(steps) == {(count, False) for count in (1, 2, 3, 4)}


def test_steps_with_adapters_are_traced_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_graphs_module, "TRACED_AT_START", 1)
    base = write_checkpoint(tmp_path / "m", "LlamaForCausalLM")
    folders = tmp_path / "adapters"
    loud, other = (
        LoRARequest(
            name, lora_path=str(save_adapter(peft_model(base, name, **more), name, folders))
        )
        for name, more in (("loud", {"lora_alpha": 64}), ("other", {"lora_alpha": 48}))
    )
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    found = []
    for eager in (True, False):
        options = NATIVE | {"enable_lora": True, "max_loras": 1, "enforce_eager": eager}
        with LLM(str(base.folder), max_model_len=128, **options) as llm:
            for adapters in (
                [None, None], [loud, None], [None, None], [loud, loud], [other, None], [loud] * 20,
            ):  # fmt: skip
                prompts = ["abc", "de"] * (len(adapters) // 2)
                outputs = llm.generate(prompts, params, lora_request=adapters)
                found.append([output.outputs[0].token_ids for output in outputs])
            graphs = runner_of(llm).graphs
            steps = set() if graphs is None else set(graphs._steps)
    assert found[:6] == found[6:]
    assert found[0] == found[2] != found[1]
    assert found[0] != found[4] != found[1]
    assert steps == {(1, False), (2, False), (2, True)}
    assert set(graphs._unavailable_reasons) == {(20, True)}, "matrix products are faster"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_has_memory_of_its_own(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with LLM(str(folder), max_model_len=128, **NATIVE) as llm:
        graphs = llm.generate("abc", params)[0].outputs[0].token_ids
        memory = runner_of(llm).graphs._memory
        before = bytes(memory._chunks[0])
        child = os.fork()
        if not child:
            memory._chunks[0][:] = bytes(len(before))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(memory._chunks[0]) == before != bytes(len(before))
        assert llm.generate("abc", params)[0].outputs[0].token_ids == graphs


def pipeline(tables: SlotTables) -> SamplingPipeline:
    return SamplingPipeline([], TorchGumbel(5, tables.device), tables, ["sampler"])


class Steps:
    """CPU graphs of a model of one forward pass, and how often that has run."""

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        group: TensorParallelGroup | None = None,
    ) -> None:
        self.passes = 0

        def counted(
            input_ids: Tensor, positions: Tensor, batch: ForwardBatch, received: None
        ) -> Tensor:
            self.passes += 1
            return forward(input_ids)

        self.tables = SlotTables(8, 64, [], [], torch.device("cpu"))
        layers = StageLayers(counted, lambda rows: rows, [], pipeline(self.tables), is_last=False)
        self.steps = CPUGraphs(layers, self.tables, group or SingleDevice())

    @torch.inference_mode()
    def compute(self, *ids: int) -> list[float] | None:
        """Return the hidden states of a step with these token ids."""
        for slot, token_id in enumerate(ids[:8]):
            self.tables.token_ids[slot, 0] = token_id
        found = self.steps.step_for([ScheduledRequest(slot, 1, 1) for slot in range(len(ids))])
        if found is None:
            return None
        slots, step = found
        assert slots == list(range(len(ids)))
        return self.steps.replay(step, len(ids), None).flatten().tolist()


@pytest.fixture(scope="module")
def embedding() -> PackedWeight:
    return PackedWeight(torch.arange(5.0).view(5, 1).bfloat16(), BFLOAT16)


def test_a_step_of_a_new_size_is_traced_and_others_replay_it(embedding):
    model = Steps(embedding.rows)
    assert model.compute(1, 2) == [1, 2]
    assert model.compute(4, 0) == [4, 0]
    assert model.compute(3) == [3]
    assert model.compute(2) == [2]
    assert model.passes == 2


def test_small_steps_are_traced_before_the_first_request(embedding, monkeypatch):
    monkeypatch.setattr(cpu_graphs_module, "TRACED_AT_START", 3)
    model = Steps(embedding.rows)
    assert model.steps.trace() is None
    passes = 3 + 1  # each is traced, and one is tried
    assert model.passes == passes
    assert [model.compute(1, 2), model.compute(3), model.compute(3, 4, 2)] == [
        [1, 2],
        [3],
        [3, 4, 2],
    ]
    assert model.passes == passes
    assert model.compute(1, 2, 3, 4) == [1, 2, 3, 4]
    assert model.passes == passes + 1
    assert not model.tables.num_known.any()


def test_a_repeated_step_refuses_what_python_refuses(embedding):
    model = Steps(embedding.rows)
    model.compute(1, 2)
    for _ in range(2):
        with pytest.raises(IndexError, match="row 9 is out of range: there are 5 rows"):
            model.compute(1, 9)
    assert model.compute(1, 3) == [1, 3]


def keeps_memory(embedding: PackedWeight) -> Callable[[Tensor], Tensor]:
    kept = []

    def forward(input_ids: Tensor) -> Tensor:
        kept.append(torch.empty(3))
        return embedding.rows(input_ids)

    return forward


def computes_with_numpy(embedding: PackedWeight) -> Callable[[Tensor], Tensor]:
    def forward(input_ids: Tensor) -> Tensor:
        rows, out = embedding.rows(input_ids), torch.empty(len(input_ids), 1)
        np.add(rows.numpy(), 1, out=out.numpy())
        return out

    return forward


def fails_while_traced(embedding: PackedWeight) -> Callable[[Tensor], Tensor]:
    def forward(input_ids: Tensor) -> Tensor:
        torch.ones(2, 2).to_mkldnn().detach()
        return embedding.rows(input_ids)

    return forward


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (keeps_memory, "still referenced"),
        (computes_with_numpy, "other results"),
        (fails_while_traced, ""),
        (lambda embedding: lambda ids: embedding.rows(ids).cumsum(0), "aten.cumsum"),
    ],
)
def test_a_model_that_cannot_be_traced_has_no_graphs(embedding, model, reason):
    model = Steps(model(embedding))
    assert reason in model.steps.trace()
    assert not model.steps._steps


def test_a_step_that_cannot_be_traced_runs_through_python(embedding, caplog):
    caplog.set_level("INFO")
    model = Steps(lambda ids: embedding.rows(ids).cumsum(0))
    assert model.compute(1, 2) is None
    assert model.compute(3, 4) is None
    assert model.passes == 1
    assert model.compute(3) is None
    (record,) = [each for each in caplog.records if "through Python" in each.message]
    assert "steps of 2 request(s)" in record.message
    assert "aten.cumsum" in record.message


def test_an_untraceable_size_does_not_prevent_tracing_of_others(embedding):
    model = Steps(
        lambda ids: embedding.rows(ids).cumsum(0) if len(ids) > 1 else embedding.rows(ids)
    )
    assert model.compute(1, 2) is None
    assert model.compute(3) == [3]
    assert model.compute(4) == [4]
    assert model.passes == 2


def test_two_engines_never_trace_at_the_same_time(embedding):
    """torch's dispatch modes are process-wide: one would trace what the other computes."""
    inside: list[int] = []
    most: list[int] = []
    both = threading.Event()

    def forward(input_ids: Tensor) -> Tensor:
        inside.append(1)
        most.append(len(inside))
        if len(inside) == 2:
            both.set()
        both.wait(0.3)  # for the other one, which must not come
        inside.pop()
        return embedding.rows(input_ids)

    engines = [Steps(forward), Steps(forward)]
    threads = [threading.Thread(target=engine.compute, args=(1, 2)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1]
    assert [engine.compute(3, 4) for engine in engines] == [[3, 4]] * 2
    assert [engine.passes for engine in engines] == [1, 1]


def test_a_full_batch_is_traced_and_a_larger_step_or_a_prefill_is_not(embedding):
    model = Steps(embedding.rows)  # eight slots
    assert model.compute(*[1] * 8) == [1] * 8
    assert model.compute(*[2] * 8) == [2] * 8
    assert model.passes == 1
    assert model.compute(*[1] * 9) is None
    for others in (ScheduledRequest(1, 2, 1), ScheduledRequest(1, 1, 0)):
        assert model.steps.step_for([ScheduledRequest(0, 1, 1), others]) is None
    assert model.passes == 1


def test_a_replay_takes_no_more_memory(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    with LLM(str(folder), max_model_len=128, **NATIVE) as llm:
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        llm.generate(["abc", "de"], params)
        graphs = runner_of(llm).graphs
        before = len(graphs._memory._chunks), {n: id(s) for n, s in graphs._steps.items()}
        llm.generate(["fgh", "ij"], params)
        after = len(graphs._memory._chunks), {n: id(s) for n, s in graphs._steps.items()}
    assert after == before == (1, before[1])


def test_a_closed_engine_lets_its_steps_go(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    with LLM(str(folder), max_model_len=128, **NATIVE) as llm:
        llm.generate("abc", SamplingParams(max_tokens=3))
        runner = runner_of(llm)
        assert runner.graphs is not None
    assert runner.graphs is None


class MiddleStage:
    """CPU graphs of a stage that writes to what it receives, as layers with a residual do."""

    def __init__(self, embedding: PackedWeight) -> None:
        self.passes = 0
        self.rows = embedding.rows
        self.tables = SlotTables(8, 64, [], [], torch.device("cpu"))
        example = StageTensors(torch.ones(0, 1), torch.ones(0, 1))
        layers = StageLayers(
            self.layers, torch.neg, [], pipeline(self.tables), example=example, is_last=False
        )
        self.steps = CPUGraphs(layers, self.tables, SingleDevice())

    def layers(
        self, input_ids: Tensor, positions: Tensor, batch: ForwardBatch, received: StageTensors
    ) -> StageTensors:
        self.passes += 1
        assert received.residual is not None
        received.residual.add_(received.hidden_states)
        residual = self.rows(positions)
        return StageTensors(received.residual, residual)

    @torch.inference_mode()
    def compute(self, positions: list[int], residual: list[float]) -> StageTensors:
        count = len(positions)
        self.tables.num_computed[:count] = positions
        found = self.steps.step_for([ScheduledRequest(slot, 1, 1) for slot in range(count)])
        assert found is not None
        given = StageTensors(torch.ones(count, 1), torch.tensor(residual)[:, None])
        computed = self.steps.replay(found[1], count, given)
        assert isinstance(computed, StageTensors)
        assert given.residual is not None
        assert given.residual.flatten().tolist() == residual, "it can be computed again"
        return computed


@pytest.mark.parametrize("is_tried", [False, True])
def test_a_stage_replays_its_layers_with_what_it_receives(embedding, is_tried):
    stage = MiddleStage(embedding)
    assert not is_tried or stage.steps.trace() is None
    before = stage.passes
    for positions, residual in (([1, 3], [10.0, 20.0]), ([4, 0], [5.0, 6.0]), ([2], [7.0])):
        computed = stage.compute(positions, residual)
        assert computed.hidden_states.flatten().tolist() == [each + 1 for each in residual]
        assert computed.residual.flatten().tolist() == positions
    assert stage.passes - before == (0 if is_tried else 2)


class OneOfTwo(SingleDevice):
    """A device whose other one says in turn whether it can do the same."""

    size = 2

    def __init__(self, *votes: bool) -> None:
        self.votes = list(votes)

    def all_reduce(self, x: Tensor) -> Tensor:
        return x + self.votes.pop(0)


def test_a_step_has_a_graph_if_both_devices_can_trace_it(embedding):
    group = OneOfTwo(True)
    model = Steps(embedding.rows, group)
    assert [model.compute(1, 2), model.compute(4, 0)] == [[1, 2], [4, 0]]
    assert model.passes == 1
    assert group.votes == []


def test_a_step_has_no_graph_if_the_other_device_has_none(embedding, caplog):
    caplog.set_level("INFO", "quire")
    model = Steps(embedding.rows, OneOfTwo(False))
    assert [model.compute(1, 2), model.compute(1, 2)] == [None, None]
    assert model.passes == 1
    assert "it cannot be traced on another tensor-parallel rank" in caplog.text


@pytest.mark.parametrize("votes", [(False,), (True, False)], ids=["trace", "replay"])
def test_there_are_no_graphs_if_the_other_device_cannot_try_one(embedding, votes):
    group = OneOfTwo(*votes)
    model = Steps(embedding.rows, group)
    assert model.steps.trace() == "it cannot be traced on another tensor-parallel rank"
    assert not model.steps._steps
    assert group.votes == []


def test_a_device_that_cannot_trace_tells_the_other_one(embedding):
    group = OneOfTwo(True)
    model = Steps(lambda ids: embedding.rows(ids).cumsum(0), group)
    assert model.compute(1, 2) is None
    assert group.votes == []


def test_a_step_that_fails_while_it_is_tried_with_others_is_an_error(embedding):
    def fails_untraced(ids: Tensor) -> Tensor:
        rows = embedding.rows(ids)
        if tracing._THREAD.trace is None:
            raise RuntimeError("no memory")
        return rows

    with pytest.raises(RuntimeError, match="no memory"):
        Steps(fails_untraced, OneOfTwo(True)).steps.trace()
    assert Steps(fails_untraced).steps.trace() == "RuntimeError: no memory"
