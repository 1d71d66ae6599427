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
from quire.outputs import LoRARequest
from quire.testing.checkpoints import write_checkpoint
from quire.worker.batch.slots import SlotTables
from quire.worker.batch.step_inputs import StepInputs
from quire.worker.graphs import cpu_graphs as cpu_graphs_module
from quire.worker.graphs.cpu_graphs import CPUGraphs
from quire.worker.model_runner import ModelRunner
from quire_quantizations.formats import BFLOAT16
from quire_quantizations.packed_weight import PackedWeight

pytestmark = NEEDS_COMPILER
COUNTS = (7, 1, 4, 12, 9)  # tokens of the completions, so the number of requests changes


def runner_of(llm: LLM) -> ModelRunner:
    return llm._running.core.runner


def completions(folder, **options: Any) -> tuple[list[Any], dict[int, Any]]:
    """Return tokens and log-probabilities for random prompts; and the traced steps."""
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 200) for _ in range(rng.randrange(1, 50))] for _ in COUNTS]
    params = [
        SamplingParams(
            temperature=0.8 * (i % 2), seed=i, max_tokens=count, ignore_eos=True, logprobs=2
        )
        for i, count in enumerate(COUNTS)
    ]
    with LLM(str(folder), max_model_len=128, **NATIVE | options) as llm:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        found = []
        for _ in range(2):
            for output in llm.generate(inputs, params):
                completion = output.outputs[0]
                found.append((completion.token_ids, completion.logprobs))
        graphs = runner_of(llm).cpu_graphs
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
    assert set(steps) == ({1, 2, 3, 4} if is_packed else set())


def test_larger_steps_go_through_python(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_graphs_module, "MAX_REQUESTS", 2)
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    plain, _ = completions(folder, enforce_eager=True)
    repeated, steps = completions(folder)
    assert repeated == plain
    assert set(steps) == {1, 2}


def test_steps_with_adapters_go_through_python_and_others_do_not(tmp_path):
    base = write_checkpoint(tmp_path / "m", "LlamaForCausalLM")
    written = save_adapter(peft_model(base, "loud", lora_alpha=64), "loud", tmp_path / "adapters")
    loud = LoRARequest("loud", lora_path=str(written))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    found = []
    for eager in (True, False):
        options = NATIVE | {"enable_lora": True, "enforce_eager": eager}
        with LLM(str(base.folder), max_model_len=128, **options) as llm:
            for adapters in ([None, None], [loud, None], [None, None], [loud, loud]):
                outputs = llm.generate(["abc", "de"], params, lora_request=adapters)
                found.append([output.outputs[0].token_ids for output in outputs])
            graphs = runner_of(llm).cpu_graphs
    assert found[:4] == found[4:]
    assert found[0] == found[2] != found[1]
    assert set(graphs._steps) == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_has_memory_of_its_own(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with LLM(str(folder), max_model_len=128, **NATIVE) as llm:
        graphs = llm.generate("abc", params)[0].outputs[0].token_ids
        memory = runner_of(llm).cpu_graphs._memory
        before = bytes(memory._chunks[0])
        child = os.fork()
        if not child:
            memory._chunks[0][:] = bytes(len(before))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(memory._chunks[0]) == before != bytes(len(before))
        assert llm.generate("abc", params)[0].outputs[0].token_ids == graphs


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

        self.steps = CPUGraphs(
            counted, [], SlotTables(8, 64, [], [], torch.device("cpu")), group or SingleDevice()
        )

    @torch.inference_mode()
    def compute(self, *ids: int) -> list[float] | None:
        """Return the hidden states of a step with these token ids."""
        tokens = torch.tensor(ids)
        count = len(ids)
        inputs = StepInputs(tokens, tokens, [], list(range(count)), [1] * count, [], None)
        hidden_states = self.steps.compute(inputs, None)
        return None if hidden_states is None else hidden_states.flatten().tolist()


@pytest.fixture(scope="module")
def embedding() -> PackedWeight:
    return PackedWeight(torch.arange(5.0).view(5, 1).bfloat16(), BFLOAT16)


def test_the_first_step_of_a_size_is_traced_and_others_replay_it(embedding):
    model = Steps(embedding.rows)
    assert model.compute(1, 2) == [1, 2]
    assert model.compute(4, 0) == [4, 0]
    assert model.compute(3) == [3]
    assert model.compute(2) == [2]
    assert model.passes == 2


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
        (computes_with_numpy, "other hidden states"),
        (fails_while_traced, ""),
        (lambda embedding: lambda ids: embedding.rows(ids).cumsum(0), "aten.cumsum"),
    ],
)
def test_a_step_that_cannot_be_traced_runs_through_python(embedding, caplog, model, reason):
    caplog.set_level("INFO")
    model = Steps(model(embedding))
    assert model.compute(1, 2) is None
    assert model.compute(3, 4) is None
    assert model.passes == 1
    (record,) = [each for each in caplog.records if "through Python" in each.message]
    assert "steps of 2 request(s)" in record.message
    assert reason in record.message


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
    tokens = torch.tensor([1, 2, 3])
    prompt = StepInputs(tokens, tokens, [], [0, 1], [2, 1], [1], None)
    assert model.steps.compute(prompt, None) is None
    assert model.passes == 1


def test_a_replay_takes_no_more_memory(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    with LLM(str(folder), max_model_len=128, **NATIVE) as llm:
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        llm.generate(["abc", "de"], params)
        graphs = runner_of(llm).cpu_graphs
        before = len(graphs._memory._chunks), {n: id(s) for n, s in graphs._steps.items()}
        llm.generate(["fgh", "ij"], params)
        after = len(graphs._memory._chunks), {n: id(s) for n, s in graphs._steps.items()}
    assert after == before == (1, before[1])


def test_a_closed_engine_lets_its_steps_go(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    with LLM(str(folder), max_model_len=128, **NATIVE) as llm:
        llm.generate("abc", SamplingParams(max_tokens=3))
        runner = runner_of(llm)
        assert runner.cpu_graphs is not None
    assert runner.cpu_graphs is None


class MiddleStage:
    """CPU graphs of a stage that writes to what it receives, as layers with a residual do."""

    def __init__(self, embedding: PackedWeight) -> None:
        self.passes = 0
        self.rows = embedding.rows
        self.steps = CPUGraphs(
            self.layers, [], SlotTables(8, 64, [], [], torch.device("cpu")), SingleDevice()
        )

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
        inputs = StepInputs(
            torch.zeros(count, dtype=torch.int64), torch.tensor(positions), [], list(range(count)),
            [1] * count, [], None,
        )  # fmt: skip
        given = StageTensors(torch.ones(count, 1), torch.tensor(residual)[:, None])
        computed = self.steps.compute(inputs, given)
        assert isinstance(computed, StageTensors)
        assert given.residual is not None
        assert given.residual.flatten().tolist() == residual, "it can be computed again"
        return computed


def test_a_stage_replays_its_layers_with_what_it_receives(embedding):
    stage = MiddleStage(embedding)
    for positions, residual in (([1, 3], [10.0, 20.0]), ([4, 0], [5.0, 6.0]), ([2], [7.0])):
        computed = stage.compute(positions, residual)
        assert computed.hidden_states.flatten().tolist() == [each + 1 for each in residual]
        assert computed.residual.flatten().tolist() == positions
    assert stage.passes == 2


class OneOfTwo(SingleDevice):
    """A device whose other one says in turn whether it can do the same."""

    size = 2

    def __init__(self, *votes: bool) -> None:
        self.votes = list(votes)

    def all_reduce(self, x: Tensor) -> Tensor:
        return x + self.votes.pop(0)


def test_a_step_has_a_graph_if_both_devices_can_trace_and_replay_it(embedding):
    group = OneOfTwo(True, True)
    model = Steps(embedding.rows, group)
    assert [model.compute(1, 2), model.compute(4, 0)] == [[1, 2], [4, 0]]
    assert model.passes == 1
    assert group.votes == []


@pytest.mark.parametrize("votes", [(False,), (True, False)], ids=["trace", "replay"])
def test_a_step_has_no_graph_if_the_other_device_has_none(embedding, votes, caplog):
    caplog.set_level("INFO", "quire")
    model = Steps(embedding.rows, OneOfTwo(*votes))
    assert [model.compute(1, 2), model.compute(1, 2)] == [None, None]
    assert model.passes == 1
    assert "it cannot be traced on another tensor-parallel rank" in caplog.text


def test_a_device_that_cannot_trace_tells_the_other_one(embedding):
    group = OneOfTwo(True)
    model = Steps(lambda ids: embedding.rows(ids).cumsum(0), group)
    assert model.compute(1, 2) is None
    assert group.votes == []


def test_a_step_that_fails_while_it_is_traced_with_others_is_not_tried_again(embedding):
    with pytest.raises(IndexError):
        Steps(embedding.rows, OneOfTwo()).compute(1, 9)
