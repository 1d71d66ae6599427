"""The selection of beams equals that of transformers."""

import msgspec
import numpy as np
import pytest
import torch
from beam_parts import logits_after, row_after, searched
from engine_parts import EOS, make_message
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from quire.engine.beam_search.beam_selection import BeamSelection
from quire.sampling_params import BeamSearchParams

PROMPT = (3, 1)


class Toy(PreTrainedModel, GenerationMixin):
    """A model of transformers whose logits are those of `logits_after`."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, vocab_size, seed):
        super().__init__(PretrainedConfig(vocab_size=vocab_size, is_encoder_decoder=False))
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self._given = vocab_size, seed

    def forward(self, input_ids, **_):
        rows = [logits_after(row, *self._given) for row in input_ids.tolist()]
        return CausalLMOutput(logits=torch.from_numpy(np.stack(rows))[:, None])

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}


def search(beam_width, max_tokens, n=None, stop_token_ids=(), **params):
    beams = BeamSearchParams(
        beam_width=beam_width, n=n, max_tokens=max_tokens, stop_token_ids=stop_token_ids, **params
    )
    return msgspec.structs.replace(
        make_message("a", prompt=PROMPT, max_tokens=max_tokens, stop_token_ids=stop_token_ids),
        params=beams.sampling_params(),
        beam_search=beams,
    )


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.integers(1, 9),
    st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([False, True, "never"]),
    st.booleans(),
    st.sampled_from([0, 0, 3]),
)
def test_the_hypotheses_are_those_of_transformers(
    seed, width, max_tokens, length_penalty, early_stopping, has_other_stop, min_tokens
):
    vocab_size = 17
    others = (5,) if has_other_stop else ()
    min_tokens = min(min_tokens, max_tokens)
    message = search(
        width,
        max_tokens,
        stop_token_ids=others,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        min_tokens=min_tokens,
    )
    found = searched(message, vocab_size, seed)
    expected = Toy(vocab_size, seed).generate(
        torch.tensor([PROMPT]),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        eos_token_id=[EOS, *others],
        pad_token_id=16,
        do_sample=False,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    if width == 1:  # transformers takes its greedy search
        greedy = [int(token) for token in expected.sequences[0][2:]]
        assert found[0].token_ids == greedy or length_penalty != 0
        return
    for hypothesis, row, score in zip(
        found, expected.sequences.tolist(), expected.sequences_scores.tolist(), strict=True
    ):
        tokens = hypothesis.token_ids
        assert row[2 : 2 + len(tokens)] == tokens
        assert set(row[2 + len(tokens) :]) <= {16}, "the rest is padding"
        assert hypothesis.cumulative_logprob / len(tokens) ** length_penalty == pytest.approx(
            score, rel=1e-5
        )


def test_a_hypothesis_has_the_log_probabilities_of_its_tokens():
    message = search(2, 3, ignore_eos=True, logprobs=2)
    best = searched(message, 17, 1)[0]
    sums = sum(row.logprobs[0] for row in best.logprobs)
    assert best.cumulative_logprob == pytest.approx(sums, rel=1e-6)
    known = list(PROMPT)
    for token_id, row in zip(best.token_ids, best.logprobs, strict=True):
        model = row_after(known, 17, 1)
        assert row.token_ids == [token_id, *model.token_ids[1:3]]
        assert row.rank == model.token_ids[1:].index(token_id) + 1
        known.append(token_id)


def test_the_stop_token_is_named_if_the_caller_named_it():
    for seed in range(30):
        message = search(2, 9, stop_token_ids=(5,))
        for found in searched(message, 9, seed):
            last = found.token_ids[-1]
            assert found.finish_reason == ("stop" if last in (EOS, 5) else "length")
            assert found.stop_reason == (5 if last == 5 else None)


def test_a_request_without_beams_is_refused():
    with pytest.raises(ValueError, match="no beam search"):
        BeamSelection(make_message("a"))


def test_a_vocabulary_smaller_than_the_beams_gives_all_there_are():
    found = searched(search(4, 2), 2, 0)  # one token, which ends, and two that begin with the other
    assert len(found) == 3
    assert len({tuple(each.token_ids) for each in found}) == len(found)
