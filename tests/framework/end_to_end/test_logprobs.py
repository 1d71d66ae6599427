"""Log probabilities of sampled tokens against transformers, in every mode of the setting."""

import asyncio
import json
import math

import pytest
import torch
from asgi_parts import post
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)
from transformers_model import transformers_model

from quire import LLM, AsyncEngine, SamplingParams
from quire.config import ServerSettings
from quire.errors import InvalidRequestError
from quire.server.app import create_app
from quire.testing.checkpoints import write_checkpoint

PROMPT = [5, 9, 200, 31, 7, 9]
MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
PROCESSED = {"temperature": 0.7, "top_k": 40, "repetition_penalty": 1.3}


class Subject:
    """A checkpoint, its vocabulary, and the logits of transformers for any tokens."""

    def __init__(self, folder):
        self.checkpoint = write_checkpoint(folder, "Qwen3ForCausalLM", seed=3, head_dim=32)
        self.vocab_size = self.checkpoint.config["vocab_size"]
        self._model = transformers_model(self.checkpoint.folder)

    def llm(self, **options):
        options = {"max_logprobs": -1} | options
        return LLM(str(self.checkpoint.folder), dtype="float32", max_model_len=96, **options)

    @torch.inference_mode()
    def logits(self, token_ids):
        return self._model(torch.tensor([token_ids])).logits[0]

    @torch.inference_mode()
    def expected(self, mode, completion):
        """What each position of a completion reports, `[tokens, V]`."""
        logits = self.logits([*PROMPT, *completion])[len(PROMPT) - 1 : -1]
        if mode.startswith("processed"):
            steps = LogitsProcessorList(
                [
                    RepetitionPenaltyLogitsProcessor(PROCESSED["repetition_penalty"]),
                    TemperatureLogitsWarper(PROCESSED["temperature"]),
                    TopKLogitsWarper(PROCESSED["top_k"]),
                ]
            )
            for row in range(len(logits)):
                known = torch.tensor([[*PROMPT, *completion[:row]]])
                logits[row] = steps(known, logits[row : row + 1])[0]
        return logits if mode.endswith("logits") else logits.log_softmax(-1)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return Subject(tmp_path_factory.mktemp("subject"))


@pytest.mark.parametrize("mode", MODES)
def test_the_whole_vocabulary_is_reported_in_every_mode(subject, mode):
    params = SamplingParams(seed=1, max_tokens=8, ignore_eos=True, logprobs=-1, **PROCESSED)
    others = [SamplingParams(max_tokens=8, seed=2), SamplingParams(temperature=0, logprobs=2)]
    with subject.llm(logprobs_mode=mode) as llm:
        output, *_ = llm.generate([PROMPT] * 3, [params, *others])
    (completion,) = output.outputs
    expected = subject.expected(mode, completion.token_ids)
    for token_id, found, row in zip(
        completion.token_ids, completion.logprobs, expected, strict=True
    ):
        assert next(iter(found)) == token_id
        assert sorted(found) == list(range(subject.vocab_size))
        values = torch.tensor([found[i].logprob for i in range(subject.vocab_size)])
        assert torch.allclose(values, row.clamp_min(-9999.0), atol=1e-4)
        assert found[token_id].rank == 1 + int((row > row[token_id]).sum())
        ranked = sorted(found, key=lambda i: found[i].rank)
        assert values[ranked].diff().max() <= 0


@pytest.mark.parametrize("mode", MODES)
def test_prompts_report_logits_where_completions_do(subject, mode):
    with subject.llm(logprobs_mode=mode) as llm:
        (output,) = llm.generate(PROMPT, SamplingParams(max_tokens=1, prompt_logprobs=-1))
    expected = subject.logits(PROMPT)[:-1]
    expected = expected if mode.endswith("logits") else expected.log_softmax(-1)
    assert output.prompt_logprobs[0] is None
    for found, row in zip(output.prompt_logprobs[1:], expected, strict=True):
        values = torch.tensor([found[i].logprob for i in range(subject.vocab_size)])
        assert torch.allclose(values, row, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"engine_process": True}])
def test_named_tokens_are_reported_and_no_others(subject, options):
    named = [subject.vocab_size - 1, 0, 77]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprob_token_ids=named)
    top = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3)
    with subject.llm(max_logprobs=3, **options) as llm:
        output, with_top = llm.generate([PROMPT] * 2, [params, top])
    (completion,) = output.outputs
    assert completion.token_ids == with_top.outputs[0].token_ids
    rows = zip(
        completion.token_ids,
        completion.logprobs,
        subject.expected("raw_logprobs", completion.token_ids),
        strict=True,
    )
    for token_id, found, row in rows:
        assert list(found) == [token_id, *(i for i in named if i != token_id)]
        for i, logprob in found.items():
            assert logprob.logprob == pytest.approx(row[i].item(), abs=1e-4)
        assert [found[i].rank for i in named if i != token_id] == [None] * 3
    for token_id, found in zip(completion.token_ids, with_top.outputs[0].logprobs, strict=True):
        assert set(range(1, 4)) <= {each.rank for each in found.values()}
        assert token_id in found


@pytest.mark.parametrize("option", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_several_workers_report_the_same(subject, option):
    whole = SamplingParams(seed=1, max_tokens=4, ignore_eos=True, logprobs=-1, **PROCESSED)
    named = SamplingParams(
        seed=1, max_tokens=4, logprob_token_ids=[3, subject.vocab_size - 1], prompt_logprobs=-1
    )
    found = []
    for options in ({}, {option: 2}):
        with subject.llm(logprobs_mode="processed_logprobs", **options) as llm:
            found.append(llm.generate([PROMPT] * 2, [whole, named]))
    for one, other in zip(*found, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        rows = [*one.outputs[0].logprobs, *(one.prompt_logprobs or [None])[1:]]
        others = [*other.outputs[0].logprobs, *(other.prompt_logprobs or [None])[1:]]
        for mine, theirs in zip(rows, others, strict=True):
            assert mine.keys() == theirs.keys()
            for token_id, each in mine.items():
                assert each.logprob == pytest.approx(theirs[token_id].logprob, abs=1e-4)


def test_more_than_the_setting_is_refused(subject):
    with subject.llm(max_logprobs=3) as llm:
        llm.generate(PROMPT, SamplingParams(max_tokens=1, logprobs=3, prompt_logprobs=3))
        for wrong in ({"logprobs": 4}, {"logprobs": -1}, {"prompt_logprobs": 4}):
            with pytest.raises(InvalidRequestError, match="at most 3 tokens per position"):
                llm.generate(PROMPT, SamplingParams(**wrong))


def no_constant(name):
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture(scope="module", params=MODES)
def ask(subject, request):
    """Asks a server in this process, in each mode; every response is strict JSON."""
    options = {"dtype": "float32", "max_model_len": 96, "logprobs_mode": request.param}
    engine = AsyncEngine(str(subject.checkpoint.folder), max_logprobs=-1, **options)
    app = create_app(engine.frontend, ServerSettings(), list)
    common = {"prompt": PROMPT, "max_tokens": 2, "seed": 4, "ignore_eos": True, "top_k": 3}

    def run(**fields):
        wire = post(app, "/v1/completions", **common | fields)
        return json.loads(wire.body, parse_constant=no_constant)

    yield run
    asyncio.run(engine.shutdown())


def test_every_value_over_http_is_finite(ask, subject):
    choice = ask(logprobs=-1, prompt_logprobs=-1)["choices"][0]
    for values in choice["logprobs"]["top_logprobs"]:
        assert 0 < len(values) <= subject.vocab_size, "tokens of one text share an entry"
        assert all(math.isfinite(value) and value >= -9999.0 for value in values.values())
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert [len(row) for row in others] == [subject.vocab_size] * (len(PROMPT) - 1)


def test_named_tokens_over_http(ask):
    choice = ask(logprob_token_ids=[6, 7])["choices"][0]
    assert [len(values) for values in choice["logprobs"]["top_logprobs"]] in ([3, 3], [2, 3])


def test_the_prompt_is_echoed_with_the_whole_vocabulary(ask):
    found = ask(logprobs=-1, echo=True)["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(PROMPT) + 2


def test_more_than_one_response_may_hold_is_refused(ask):
    error = ask(logprobs=-1, max_tokens=80, n=100)["error"]
    assert error["param"] == "logprobs"
    assert "set a smaller max_tokens" in error["message"]
    assert len(ask(logprobs=20, n=100)["choices"]) == 100, "small numbers are not counted"
