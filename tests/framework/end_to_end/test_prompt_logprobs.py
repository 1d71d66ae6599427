"""Log probabilities of prompts against transformers, however the prompts are computed."""

import random

import pytest
import torch
from transformers_model import transformers_model

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

WITH_LOGPROBS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, prompt_logprobs=3)
PLAIN = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LENGTHS = (1, 2, 15, 16, 17, 33, 70, 100)


class Subject:
    """A checkpoint, prompts, and the log probabilities of transformers for each."""

    def __init__(self, folder):
        self.checkpoint = write_checkpoint(folder, "Qwen3ForCausalLM", seed=3, head_dim=32)
        rng = random.Random(5)
        vocab_size = self.checkpoint.config["vocab_size"]
        self.prompts = [[rng.randrange(3, vocab_size) for _ in range(n)] for n in LENGTHS]
        self.expected = self._run_transformers()

    def llm(self, **options):
        return LLM(str(self.checkpoint.folder), dtype="float32", max_model_len=160, **options)

    @torch.inference_mode()
    def _run_transformers(self):
        model = transformers_model(self.checkpoint.folder)
        return [model(torch.tensor([ids])).logits[0].log_softmax(-1) for ids in self.prompts]

    def check(self, outputs):
        for prompt, expected, output in zip(self.prompts, self.expected, outputs, strict=True):
            rows = output.prompt_logprobs
            assert rows[0] is None
            assert len(rows) == len(prompt)
            for token_id, row, found in zip(prompt[1:], expected, rows[1:], strict=False):
                check_row(found, row, token_id)


def check_row(found, row, token_id):
    assert next(iter(found)) == token_id
    assert {i for i, logprob in found.items() if logprob.rank <= 3} == set(
        row.topk(3).indices.tolist()
    )
    assert found[token_id].rank == 1 + int((row > row[token_id]).sum())
    for candidate, logprob in found.items():
        assert logprob.logprob == pytest.approx(row[candidate].item(), abs=1e-4)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return Subject(tmp_path_factory.mktemp("subject"))


def completions(outputs):
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("budget", [1, 7, 16, 61, 2048])
def test_chunks_of_every_size_report_the_same(subject, budget):
    with subject.llm(max_num_batched_tokens=budget) as llm:
        outputs = llm.generate(subject.prompts, WITH_LOGPROBS)
        subject.check(outputs)
        assert completions(outputs) == completions(llm.generate(subject.prompts, PLAIN))


@pytest.mark.parametrize("budget", [13, 2048])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_preemption_neither_loses_nor_repeats_a_token(subject, budget, async_scheduling):
    options = {"num_kv_blocks": 12, "max_num_batched_tokens": budget, "max_num_partial_prefills": 8}
    with subject.llm(async_scheduling=async_scheduling, **options) as llm:
        longer = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, prompt_logprobs=3)
        subject.check(llm.generate(subject.prompts, longer))
        assert llm.stats().num_preemptions > 0
        assert llm.stats().num_used_blocks == 0


def test_a_prompt_that_is_cached_is_computed_all_the_same(subject):
    with subject.llm() as llm:
        llm.generate(subject.prompts, PLAIN)
        outputs = llm.generate(subject.prompts, WITH_LOGPROBS)
        subject.check(outputs)
        assert [output.num_cached_tokens for output in outputs] == [0] * len(outputs)
        hits = [output.num_cached_tokens for output in llm.generate(subject.prompts, PLAIN)]
        assert hits == [(length - 1) // 16 * 16 for length in LENGTHS]


def test_it_fills_the_cache_for_others(subject):
    with subject.llm() as llm:
        llm.generate(subject.prompts[-1], WITH_LOGPROBS)
        (output,) = llm.generate(subject.prompts[-1], PLAIN)
        assert output.num_cached_tokens == 96


def test_several_completions_share_one_report(subject):
    params = SamplingParams(seed=1, n=3, max_tokens=4, ignore_eos=True, prompt_logprobs=3)
    with subject.llm() as llm:
        outputs = llm.generate(subject.prompts, params)
        subject.check(outputs)
        assert [len(output.outputs) for output in outputs] == [3] * len(outputs)


def test_requests_with_and_without_prompt_logprobs_share_a_batch(subject):
    mixed = [WITH_LOGPROBS if index % 2 else PLAIN for index in range(len(subject.prompts))]
    with subject.llm(max_num_batched_tokens=24) as llm:
        outputs = llm.generate(subject.prompts, mixed)
        whole = llm.generate(subject.prompts, WITH_LOGPROBS)
    assert [output.prompt_logprobs is None for output in outputs] == [True, False] * 4
    for mine, theirs in zip(outputs[1::2], whole[1::2], strict=True):
        assert [row and set(row) for row in mine.prompt_logprobs] == [
            row and set(row) for row in theirs.prompt_logprobs
        ]
    assert completions(outputs) == completions(whole)


def test_the_test_can_fail(subject):
    with subject.llm() as llm:
        outputs = llm.generate(subject.prompts, WITH_LOGPROBS)
    outputs[-1].prompt_logprobs = [None, *outputs[-1].prompt_logprobs[2:], {5: None}]
    with pytest.raises(AssertionError):
        subject.check(outputs)


def test_an_engine_in_another_process_reports_the_same(subject):
    with subject.llm(engine_process=True, max_num_batched_tokens=40) as llm:
        subject.check(llm.generate(subject.prompts, WITH_LOGPROBS))
