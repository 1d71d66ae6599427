"""Steps as on a GPU, kernel for kernel: captured ones generate the same as plain torch.

A captured step is recorded here operator by operator, with the values before the first request, and
replayed exactly; so one that depends on a host-side value generates wrong tokens.
"""

import gc
import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch
from recorded_engine import AS_ON_A_GPU, capture, recorded_engine, runner_of
from recorded_runs import RecordedRuns

from quire import LLM, SamplingParams
from quire.errors import CapacityError, RefusedError
from quire.interfaces.lora import Adapter, AdapterModule, LoRASource
from quire.layers import Attention, SingleDevice
from quire.machine.machine import interprets_kernels
from quire.messages import AdapterRef
from quire.testing.checkpoints import write_checkpoint
from quire.worker import runner_builder as assembling
from quire.worker import worker as worker_module
from quire.worker.graphs.decode_graphs import DecodeGraphs
from quire.worker.graphs.graph_capture import EagerRuns, StepCapture

pytestmark = [
    pytest.mark.skipif(not interprets_kernels(), reason="kernels run on the GPU: see tests/gpu"),
    # Rows of padding hold anything, and numpy warns where a kernel multiplies it.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

SIZES = {"max_model_len": 64, "max_num_seqs": 3, "block_size": 16}
PROMPTS = [[5, 9, 14], list(range(30, 49)), [100], [7, 7, 8, 250, 3]]


def greedy(max_tokens, **params):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **params)


def sampled(max_tokens, **params):
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("m"),
        "Qwen3ForCausalLM",
        seed=11,
        head_dim=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    ).folder


def completions(llm, prompts, params):
    return [output.outputs[0] for output in llm.generate(prompts, params)]


def tokens_of(outputs):
    return [output.token_ids for output in outputs]


def assert_alike(found, expected):
    assert tokens_of(found) == tokens_of(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for mine, wanted in zip(ours.logprobs or [], theirs.logprobs or [], strict=True):
            assert list(mine) == list(wanted)
            for token_id, each in mine.items():
                assert abs(each.logprob - wanted[token_id].logprob) < 1e-4


def test_captured_steps_generate_what_plain_torch_does(folder):
    """Requests join and leave, so steps have three, two and one of them, in two sizes."""
    params = [greedy(7), greedy(3), greedy(2), greedy(4)]
    with LLM(str(folder), kernels="torch", device="cpu", dtype="float32", **SIZES) as llm:
        expected = completions(llm, PROMPTS, params)
    with recorded_engine(folder, [2, 3], **SIZES) as (llm, runs):
        assert_alike(completions(llm, PROMPTS, params), expected)
    of_three, samplings_of_three, of_two, samplings_of_two = runs.num_replays
    assert of_three >= 1
    assert of_two >= 3
    assert (samplings_of_three, samplings_of_two) == (of_three, of_two), "greedy sampling is fused"
    assert runs.is_finished


def test_eager_sampling_uses_the_logits_of_the_captured_step(folder):
    """Log probabilities and min_tokens masks come between the captured step and sampling."""
    params = [
        greedy(4, logprobs=2),
        greedy(4, min_tokens=3, stop_token_ids=tuple(range(0, 320, 2))),
    ]
    with LLM(str(folder), kernels="torch", device="cpu", dtype="float32", **SIZES) as llm:
        expected = completions(llm, PROMPTS[:2], params)
    with recorded_engine(folder, [2], **SIZES) as (llm, runs):
        assert_alike(completions(llm, PROMPTS[:2], params), expected)
    steps, samplings = runs.num_replays
    assert steps >= 2
    assert samplings == 0


@pytest.mark.slow
def test_random_sampling_is_the_same_in_captured_and_eager_steps(folder):
    params = [
        sampled(5, temperature=0.9, seed=1),
        sampled(4, temperature=1.2, top_p=0.9, top_k=20, seed=2),
        greedy(5),
    ]
    with LLM(str(folder), enforce_eager=True, **AS_ON_A_GPU, **SIZES) as llm:
        assert runner_of(llm).graphs is None
        expected = completions(llm, PROMPTS[:3], params)
    with recorded_engine(folder, [3], **SIZES) as (llm, runs):
        assert tokens_of(completions(llm, PROMPTS[:3], params)) == tokens_of(expected)
    assert runs.num_replays[1] >= 3


@pytest.mark.parametrize(
    "async_scheduling", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "async"]
)
def test_preemption_and_prefix_hits_change_nothing(folder, async_scheduling):
    """Two requests need four blocks and there are three; the second round finds the first's."""
    options = SIZES | {
        "max_model_len": 32,
        "num_kv_blocks": 4,
        "async_scheduling": async_scheduling,
    }
    prompts, params = [list(range(40, 54)), list(range(90, 103))], [greedy(5), greedy(5)]
    with LLM(str(folder), kernels="torch", device="cpu", dtype="float32", **SIZES) as llm:
        expected = completions(llm, prompts, params)
    with recorded_engine(folder, [1, 2], **options) as (llm, runs):
        for _ in range(2):
            assert tokens_of(completions(llm, prompts, params)) == tokens_of(expected)
        again = completions(llm, [prompts[0] + expected[0].token_ids[:4]], greedy(1))
        assert tokens_of(again) == [expected[0].token_ids[4:]]
        stats = llm.stats()
    assert async_scheduling or stats.num_preemptions > 0
    assert stats.num_prefix_hits > 0
    assert min(runs.num_replays) > 0


class TwoAdapters(LoRASource):
    """Random adapters of the first layer, seeded by their names."""

    def resolve(self, name):
        raise NotImplementedError

    def content_hash(self, folder):
        raise NotImplementedError

    def read(self, folder, max_rank):
        rng = torch.Generator().manual_seed(sum(folder.name.encode()))
        module = AdapterModule(
            torch.randn(2, 64, generator=rng), torch.randn(64, 2, generator=rng) * 0.3, 1.0
        )
        return Adapter({"model.layers.0.self_attn.q_proj": module}, None, folder.name)


def adapted(llm, requests):
    """Tokens by adapter and prompt, run together."""
    core, intake = llm._running.core, llm._running.intake
    runner_of(llm).adapters.source = TwoAdapters()
    found = {}
    for name, num_tokens in requests:
        adapter = AdapterRef(name, name, name) if name else None
        (request,) = intake.admit(PROMPTS[0], greedy(num_tokens), adapter=adapter).requests
        found[request.request_id] = []
        core.add(request)
    while core.has_work():
        for output in core.step().outputs:
            assert output.error is None
            found[output.request_id] += output.token_ids
    return list(found.values())


def test_each_row_of_a_captured_step_has_its_own_adapter(folder):
    options = SIZES | {"enable_lora": True, "max_loras": 2, "max_lora_rank": 4}
    first, second = [("a", 5), (None, 4), ("b", 3)], [("b", 4), (None, 2), ("c", 3)]
    with LLM(str(folder), kernels="torch", device="cpu", dtype="float32", **options) as llm:
        expected = [adapted(llm, requests) for requests in (first, second)]
    assert len(set(map(tuple, expected[0]))) == 3, "every adapter gives other tokens"
    with recorded_engine(folder, [3], **options) as (llm, runs):
        assert [adapted(llm, requests) for requests in (first, second)] == expected
        num_plain = runs.num_replays[0]
        assert runs.num_replays[2] >= 3
        assert adapted(llm, [(None, 3)]) == [expected[0][1][:3]]
        assert runs.num_replays[0] > num_plain, "no request used an adapter"


def test_padding_writes_to_the_padding_slot_and_the_null_block_only(folder):
    with recorded_engine(folder, [3], **SIZES, num_kv_blocks=9) as (llm, _):
        runner = runner_of(llm)
        core, intake = llm._running.core, llm._running.intake
        (request,) = intake.admit(PROMPTS[0], greedy(4)).requests
        core.add(request)
        core.step()
        caches = [m._kv_cache for m in runner.model.modules() if isinstance(m, Attention)]
        for cache in caches:
            cache[1:].fill_(3.25)
        runner.tables.token_ids[1:-1].fill_(-7)
        before = [cache.clone() for cache in caches]
        core.step()
        slot, position = 0, len(PROMPTS[0])  # of the token that this step computed
        (block,) = runner.tables.block_tables[0][slot, :1].tolist()
        for cache, old in zip(caches, before, strict=True):
            changed = (cache.view(torch.int32) != old.view(torch.int32)).nonzero()
            assert set(changed[:, 0].tolist()) <= {0, block}
            mine = changed[changed[:, 0] == block]
            assert set(mine[:, 3].tolist()) == {position}
        assert runner.tables.token_ids[1:-1].eq(-7).all()


@pytest.mark.slow
def test_only_steps_of_one_token_for_each_of_some_requests_are_captured(folder):
    with recorded_engine(folder, [1, 2], **SIZES) as (llm, runs):
        completions(llm, [PROMPTS[1]], greedy(1))
        assert not any(runs.num_replays), "a prompt is not such a step"
        completions(llm, [PROMPTS[1]], [greedy(1, prompt_logprobs=1)])
        assert not any(runs.num_replays)
        completions(llm, PROMPTS[:3], [greedy(2), greedy(2), greedy(2)])
        assert not any(runs.num_replays), "three requests are too many"
        completions(llm, [PROMPTS[1]], [greedy(2, prompt_logprobs=1)])
        assert runs.num_replays == [0, 0, 1, 1], "its prompt is over"


def test_a_captured_step_that_fails_is_computed_eagerly(folder, caplog):
    with recorded_engine(folder, [2], **SIZES) as (llm, runs):
        expected = tokens_of(completions(llm, PROMPTS[:2], greedy(3)))
        num_steps = runs.num_replays[0]

        def fails(num_requests, *, uses_adapters):
            step = step_of(num_requests, uses_adapters=uses_adapters)
            return None if step is None else replace(step, compute=_fail)

        graphs = runner_of(llm).graphs
        step_of, graphs.step_of = graphs.step_of, fails
        assert tokens_of(completions(llm, PROMPTS[:2], greedy(3))) == expected
        assert runs.num_replays[0] == num_steps
    assert (
        Counter(r.message for r in caplog.records)[
            "a captured step of 2 request(s) failed; it is computed eagerly"
        ]
        == 2
    )


def _fail():
    raise RuntimeError("no such graph")


def test_a_row_of_nan_fails_its_request_only(folder):
    with recorded_engine(folder, [2], **SIZES) as (llm, runs):
        runner = runner_of(llm)
        core, intake = llm._running.core, llm._running.intake
        requests = [intake.admit(prompt, greedy(3)).requests[0] for prompt in PROMPTS[:2]]
        for request in requests:
            core.add(request)
        core.step()
        for module in runner.model.modules():
            if isinstance(module, Attention):
                block = runner.tables.block_tables[0][0, 0]
                module._kv_cache[int(block)] = torch.nan  # what the first request has computed
        reasons = {}
        while core.has_work():
            for output in core.step().outputs:
                if output.finish_reason:
                    reasons[output.request_id] = output.finish_reason
        assert list(map(reasons.get, [r.request_id for r in requests])) == ["error", "length"]
    assert runs.num_replays[0] >= 1


@pytest.mark.parametrize("runs", [RecordedRuns, EagerRuns])
def test_a_closed_engine_is_freed_without_a_garbage_collection(folder, runs, monkeypatch):
    monkeypatch.setattr(worker_module, "free_unused_memory", lambda device: None)
    gc.collect()
    gc.disable()
    try:
        with LLM(str(folder), enforce_eager=True, **AS_ON_A_GPU, **SIZES) as llm:
            capture(llm, [1, 2], runs())
            runner = runner_of(llm)
            assert completions(llm, PROMPTS[:2], greedy(2))
            kept = [weakref.ref(each) for each in (runner, runner.graphs, runner.model)]
            kept += [weakref.ref(each) for each in (runner.tables, runner.graphs._logits)]
            del runner
        assert [each() for each in kept] == [None] * len(kept)
    finally:
        gc.enable()


class UncapturedPart(StepCapture):
    """A device on which a capture fails, and then its end as well."""

    def __init__(self, first):
        self.first = first

    def capture(self, run):
        try:
            raise self.first
        finally:
            raise RuntimeError("capture_end failed")


@pytest.fixture
def failing(monkeypatch):
    def fail(first):
        monkeypatch.setattr(assembling, "step_capture", lambda device: UncapturedPart(first))

    return fail


def test_a_part_that_cannot_be_captured_is_launched_kernel_by_kernel(folder, failing, caplog):
    failing(KeyError("a part that asks"))
    with LLM(str(folder), **AS_ON_A_GPU, **SIZES) as llm:
        assert runner_of(llm).graphs is None
        assert completions(llm, PROMPTS[:1], greedy(1))
    (warning,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    for part in ("kernel by kernel", "capture_end failed", "KeyError: 'a part that asks'"):
        assert part in warning


class CapturesOneStep(RecordedRuns):
    """The step of the largest size and its sampling."""

    def capture(self, run):
        if len(self.num_replays) == 2:
            raise KeyError("a smaller one")
        return super().capture(run)


def test_there_is_no_captured_step_if_one_cannot_be_captured(folder):
    with LLM(str(folder), enforce_eager=True, **AS_ON_A_GPU, **SIZES) as llm:
        runner = runner_of(llm)
        graphs = DecodeGraphs(runner.device_inputs, runner.pipeline, [1, 2], SingleDevice())
        refusal = graphs.capture(
            CapturesOneStep(), runner.compute, runner.model.compute_logits, with_adapters=False
        )
        assert "a decode step of 1 requests cannot be captured" in str(refusal)
        assert graphs.step_of(2, uses_adapters=False) is None


def test_required_graphs_must_be_captured(folder, failing):
    failing(KeyError("a part that asks"))
    with pytest.raises(RefusedError, match=r"before that, KeyError: 'a part that asks'.*eager"):
        LLM(str(folder), max_cuda_graph_size=2, **AS_ON_A_GPU, **SIZES)


def test_a_capture_without_memory_names_the_flags(folder, failing):
    failing(torch.OutOfMemoryError("tried to allocate 2 GiB"))
    with pytest.raises(CapacityError, match=r"gpu_memory_utilization or max_cuda_graph_size"):
        LLM(str(folder), **AS_ON_A_GPU, **SIZES)
