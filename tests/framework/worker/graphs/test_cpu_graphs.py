"""A recorded step gives the bits of one that went through Python, for any requests in it."""

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
from kernel_ways import NATIVE
from torch import Tensor

from quire import LLM, SamplingParams
from quire.interfaces.model import ForwardBatch
from quire.outputs import LoRARequest
from quire.testing.checkpoints import write_checkpoint
from quire.worker.batch.slots import SlotTables
from quire.worker.batch.step_inputs import StepInputs
from quire.worker.graphs import cpu_graphs as recorded_steps
from quire.worker.graphs.cpu_graphs import CPUGraphs
from quire.worker.model_runner import ModelRunner
from quire_quantizations.formats import BFLOAT16
from quire_quantizations.packed_weight import PackedWeight

pytestmark = NEEDS_COMPILER
COUNTS = (7, 1, 4, 12, 9)  # tokens of the answers, so the number of requests changes


def runner_of(llm: LLM) -> ModelRunner:
    return llm._running.core.executor._worker._ready_runner()


def answers(folder, **options: Any) -> tuple[list[Any], dict[int, Any]]:
    """Return tokens and log-probabilities of answers to random prompts; and what was recorded."""
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
                answer = output.outputs[0]
                found.append((answer.token_ids, answer.logprobs))
        recorded = runner_of(llm).recorded
        return found, {} if recorded is None else dict(recorded._steps)


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
def test_answers_are_those_of_steps_that_are_not_recorded(tmp_path, architecture, options):
    folder = write_checkpoint(tmp_path / "m", architecture).folder
    plain, none = answers(folder, enforce_eager=True, **options)
    repeated, steps = answers(folder, **options)
    assert repeated == plain
    assert not none
    is_packed = options.get("quantization") != "none"  # else torch multiplies
    assert set(steps) == ({1, 2, 3, 4} if is_packed else set())


def test_larger_steps_go_through_python(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_steps, "MAX_REQUESTS", 2)
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    plain, _ = answers(folder, enforce_eager=True)
    repeated, steps = answers(folder)
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
            recorded = runner_of(llm).recorded
    assert found[:4] == found[4:]
    assert found[0] == found[2] != found[1]
    assert set(recorded._steps) == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_has_memory_of_its_own(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with LLM(str(folder), max_model_len=128, **NATIVE) as llm:
        recorded = llm.generate("abc", params)[0].outputs[0].token_ids
        memory = runner_of(llm).recorded._memory
        before = bytes(memory._chunks[0])
        child = os.fork()
        if not child:
            memory._chunks[0][:] = bytes(len(before))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(memory._chunks[0]) == before != bytes(len(before))
        assert llm.generate("abc", params)[0].outputs[0].token_ids == recorded


class Steps:
    """Recorded steps of a model of one forward pass, and how often that has run."""

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        self.passes = 0

        def counted(input_ids: Tensor, positions: Tensor, batch: ForwardBatch) -> Tensor:
            self.passes += 1
            return forward(input_ids)

        self.steps = CPUGraphs(counted, [], SlotTables(8, 64, [], [], torch.device("cpu")))

    @torch.inference_mode()
    def compute(self, *ids: int) -> list[float] | None:
        """Return the hidden states of a step with these token ids."""
        tokens = torch.tensor(ids)
        count = len(ids)
        inputs = StepInputs(tokens, tokens, [], list(range(count)), [1] * count, [], None)
        hidden_states = self.steps.hidden_states_of(inputs)
        return None if hidden_states is None else hidden_states.flatten().tolist()


@pytest.fixture(scope="module")
def embedding() -> PackedWeight:
    return PackedWeight(torch.arange(5.0).view(5, 1).bfloat16(), BFLOAT16)


def test_the_first_step_of_a_size_is_recorded_and_others_repeat_it(embedding):
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
        with pytest.raises(IndexError, match="row 9 of a weight that has 5 rows"):
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


def fails_while_recorded(embedding: PackedWeight) -> Callable[[Tensor], Tensor]:
    def forward(input_ids: Tensor) -> Tensor:
        torch.ones(2, 2).to_mkldnn().detach()
        return embedding.rows(input_ids)

    return forward


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (keeps_memory, "keeps memory"),
        (computes_with_numpy, "not all of it"),
        (fails_while_recorded, ""),
        (lambda embedding: lambda ids: embedding.rows(ids).exp(), "aten.exp"),
    ],
)
def test_what_cannot_be_repeated_goes_through_python(embedding, caplog, model, told):
    caplog.set_level("INFO")
    model = Steps(model(embedding))
    assert model.compute(1, 2) is None
    assert model.compute(3, 4) is None
    assert model.passes == 1
    (record,) = [each for each in caplog.records if "through Python" in each.message]
    assert "steps of 2 request(s)" in record.message
    assert told in record.message


def test_a_flaw_of_one_size_keeps_no_other_from_being_recorded(embedding):
    model = Steps(lambda ids: embedding.rows(ids).exp() if len(ids) > 1 else embedding.rows(ids))
    assert model.compute(1, 2) is None
    assert model.compute(3) == [3]
    assert model.compute(4) == [4]
    assert model.passes == 2


def test_two_engines_never_record_at_the_same_time(embedding):
    """torch keeps its modes for the whole process: one would note what the other computes."""
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


def test_a_full_batch_is_recorded_and_a_larger_step_or_one_of_a_prompt_is_not(embedding):
    model = Steps(embedding.rows)  # eight slots
    assert model.compute(*[1] * 8) == [1] * 8
    assert model.compute(*[2] * 8) == [2] * 8
    assert model.passes == 1
    assert model.compute(*[1] * 9) is None
    tokens = torch.tensor([1, 2, 3])
    prompt = StepInputs(tokens, tokens, [], [0, 1], [2, 1], [1], None)
    assert model.steps.hidden_states_of(prompt) is None
    assert model.passes == 1


def test_a_recorded_step_takes_no_more_memory_with_each_repetition(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    with LLM(str(folder), max_model_len=128, **NATIVE) as llm:
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        llm.generate(["abc", "de"], params)
        recorded = runner_of(llm).recorded
        before = len(recorded._memory._chunks), {n: id(s) for n, s in recorded._steps.items()}
        llm.generate(["fgh", "ij"], params)
        after = len(recorded._memory._chunks), {n: id(s) for n, s in recorded._steps.items()}
    assert after == before == (1, before[1])


def test_a_closed_engine_lets_its_steps_go(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    with LLM(str(folder), max_model_len=128, **NATIVE) as llm:
        llm.generate("abc", SamplingParams(max_tokens=3))
        runner = runner_of(llm)
        assert runner.recorded is not None
    assert runner.recorded is None
