"""Beam search of the whole engine: the completions of transformers, however the work is cut."""

import asyncio
import random
from functools import cache
from typing import Any

import pytest
import torch
from transformers_model import one_thread, transformers_model

from quire import LLM, AsyncEngine, BeamSearchParams, SamplingParams
from quire.errors import InvalidRequestError, PromptsError, RequestError
from quire.testing.checkpoints import write_checkpoint

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "windows": ("Gemma3ForCausalLM", {"sliding_window": 18}),
}
LENGTHS = (1, 7, 16, 33, 70)
SEARCHES = {
    "sums": {"length_penalty": 0.0},
    "means": {},
    "early": {"early_stopping": True},
    "never": {"early_stopping": "never", "length_penalty": 2.0},
}
WIDTH, MAX_TOKENS = 4, 24
FEW = 125  # blocks of eight tokens; all searches at once need about 240
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "uncached": {"enable_prefix_caching": False},
    "few-blocks": {"num_kv_blocks": FEW},
    "chunks-of-7": {"max_num_batched_tokens": 7},
    "async": {"async_scheduling": True},
    "async-few-blocks": {"async_scheduling": True, "num_kv_blocks": FEW},
    "process": {"engine_process": True, "async_scheduling": True},
    "two-stages": {"pipeline_parallel_size": 2},
    "two-ranks": {"tensor_parallel_size": 2},
    "store": {"kv_store": "host_memory", "num_kv_blocks": FEW},
}
SLOW = ("process", "two-stages", "two-ranks", "store")


class Subject:
    """A checkpoint, prompts, and the hypotheses by transformers for each."""

    def __init__(self, folder, architecture, config):
        self.checkpoint = write_checkpoint(folder, architecture, seed=3, **config)
        rng = random.Random(5)
        vocab_size = self.checkpoint.config["vocab_size"]
        self.prompts = [[rng.randrange(3, vocab_size) for _ in range(n)] for n in LENGTHS]
        self.model = transformers_model(self.checkpoint.folder)
        # end-of-text tokens that occur, since a random model hardly takes its own
        first = self.search(self.prompts[1], [], {})
        self.stops = sorted({first[0][0][-3], first[1][0][-2]})

        self._found: dict[str, list[list[tuple[list[int], float]]]] = {}

    def expected(self, name: str) -> list[list[tuple[list[int], float]]]:
        if name not in self._found:
            options = SEARCHES[name]
            self._found[name] = [self.search(each, self.stops, options) for each in self.prompts]
        return self._found[name]

    @torch.inference_mode()
    def search(self, prompt, stops, options) -> list[tuple[list[int], float]]:
        token_ids = torch.tensor([prompt])
        with one_thread():
            out = self.model.generate(
                input_ids=token_ids,
                attention_mask=torch.ones_like(token_ids),
                num_beams=WIDTH,
                num_return_sequences=WIDTH,
                max_new_tokens=MAX_TOKENS,
                eos_token_id=stops or None,
                pad_token_id=-1,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
        scores = out.sequences_scores.tolist()
        rows = [[token for token in row if token >= 0] for row in out.sequences.tolist()]
        return [(row[len(prompt) :], score) for row, score in zip(rows, scores, strict=True)]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    @cache
    def make(name):
        return Subject(tmp_path_factory.mktemp(name), *MODELS[name])

    return make


def params(name, subject):
    return BeamSearchParams(
        beam_width=WIDTH,
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
        stop_token_ids=tuple(subject.stops),
        **SEARCHES[name],
    )


def check(outputs, expected, length_penalty=1.0):
    for output, wanted in zip(outputs, expected, strict=True):
        assert [each.token_ids for each in output.outputs] == [tokens for tokens, _ in wanted]
        for completion, (tokens, score) in zip(output.outputs, wanted, strict=True):
            mean = completion.cumulative_logprob / len(tokens) ** length_penalty
            assert mean == pytest.approx(score, abs=1e-4)


def start(subject, **options):
    return LLM(
        str(subject.checkpoint.folder), dtype="float32", max_model_len=120, block_size=8, **options
    )


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("model", MODELS)
def test_the_completions_are_those_of_transformers(subjects, model, search):
    subject = subjects(model)
    with start(subject) as llm:
        outputs = llm.beam_search(subject.prompts, params(search, subject))
    check(outputs, subject.expected(search), SEARCHES[search].get("length_penalty", 1.0))


@pytest.mark.parametrize(
    "mode", [pytest.param(m, marks=pytest.mark.slow) if m in SLOW else m for m in MODES]
)
@pytest.mark.parametrize("model", MODELS)
def test_the_completions_are_the_same_in_every_mode(subjects, model, mode):
    subject = subjects(model)
    others = SamplingParams(temperature=1, seed=7, max_tokens=40, ignore_eos=True)
    given = [params("means", subject), others]
    prompts = [prompt for prompt in subject.prompts for _ in given]
    each = given * len(subject.prompts)
    with start(subject, **MODES[mode]) as llm:
        outputs = llm.generate(prompts, each)
        alone = llm.generate(subject.prompts[-1], others)[0]
    check(outputs[::2], subject.expected("means"))
    assert outputs[-1].outputs[0].token_ids == alone.outputs[0].token_ids


def test_text_logprobs_and_the_number_of_completions(subjects):
    subject = subjects("llama")
    with start(subject) as llm:
        given = BeamSearchParams(beam_width=3, n=2, max_tokens=5, logprobs=1, ignore_eos=True)
        (output,) = llm.beam_search("abc", given)
        (plain,) = llm.generate(
            {"prompt_token_ids": [*output.prompt_token_ids, *output.outputs[0].token_ids]},
            SamplingParams(prompt_logprobs=0, max_tokens=1),
        )
    assert [each.index for each in output.outputs] == [0, 1]
    best = output.outputs[0]
    assert best.finish_reason == "length"
    assert best.text == llm_text(subject, best.token_ids)
    own = [row[token].logprob for row, token in zip(best.logprobs, best.token_ids, strict=True)]
    assert best.cumulative_logprob == pytest.approx(sum(own), abs=1e-4)
    again = [next(iter(row.values())).logprob for row in plain.prompt_logprobs[-5:]]
    assert own == pytest.approx(again, abs=1e-4)
    assert all(1 <= len(row) <= 2 for row in best.logprobs)


def llm_text(subject, token_ids):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(subject.checkpoint.folder).decode(
        token_ids, skip_special_tokens=True
    )


def test_an_async_engine_searches_too(subjects):
    subject = subjects("llama")

    async def run():
        engine = AsyncEngine(
            str(subject.checkpoint.folder), dtype="float32", max_model_len=120, block_size=8
        )
        try:
            output = await engine.beam_search(
                {"prompt_token_ids": subject.prompts[2]}, params("means", subject)
            )
            deltas = engine.generate("abc", BeamSearchParams(beam_width=2, max_tokens=3))
            return output, [delta async for delta in deltas]
        finally:
            await engine.shutdown()

    output, deltas = asyncio.run(run())
    check([output], subject.expected("means")[2:3])
    assert [delta.index for delta in deltas] == [0, 1]
    assert all(delta.finish_reason for delta in deltas)


def test_what_cannot_be_searched_is_refused(subjects):
    with start(subjects("llama"), max_num_seqs=4) as llm:
        with pytest.raises(RequestError, match="max-num-seqs"):
            llm.beam_search("abc", BeamSearchParams(beam_width=5))
        wide = BeamSearchParams(beam_width=50, stop_token_ids=tuple(range(100, 200)))
        with pytest.raises(InvalidRequestError, match="candidates"):
            llm.beam_search("abc", wide)
        with pytest.raises(PromptsError):
            llm.beam_search(["abc", [10**9]], BeamSearchParams(beam_width=2))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beam_width", 0), ("beam_width", 129), ("beam_width", True), ("beam_width", 2.0),
        ("n", 0), ("n", 4), ("length_penalty", float("nan")), ("length_penalty", float("inf")),
        ("length_penalty", 11.0), ("length_penalty", "1"), ("early_stopping", "always"),
        ("early_stopping", 1), ("temperature", 0.7), ("temperature", True), ("max_tokens", 0),
        ("logprobs", -2), ("stop_token_ids", 5),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_refused_by_name(field, value):
    with pytest.raises(InvalidRequestError) as caught:
        BeamSearchParams(**{"beam_width": 3, field: value})
    assert caught.value.param == field
