"""Every family against transformers on the same weights."""

from math import prod

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from model_parts import greedy, make_model, random_tokens

from quire.testing.model.dense_attention import difference, logits_of
from quire.worker.loading.checkpoint_files import find_weight_files, read_headers
from quire.worker.loading.weight_loading import load_weights

TOLERANCE = 1e-4
NAMES = [(family, shape) for family, shapes in CASES.items() for shape in shapes]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=NAMES, ids="-".join)
def checkpoint(request, tmp_path_factory):
    family, shape = request.param
    written = write_family(tmp_path_factory.mktemp("family"), CASES[family][shape])
    assert written.config["architectures"] == [family]
    return written


@pytest.fixture(scope="module")
def model(checkpoint):
    made = make_model(checkpoint.config)
    load_weights(made, checkpoint.folder)
    return made


def test_logits_equal_those_of_transformers(checkpoint, model):
    token_ids = random_tokens(100)
    assert difference(logits_of(model, token_ids), checkpoint.logits(token_ids)) < TOLERANCE


def test_chunks_give_the_logits_of_transformers(checkpoint, model):
    token_ids = random_tokens(60, seed=2)
    starts = range(0, 60, 17)
    chunks = [logits_of(model, token_ids[start : start + 17], start) for start in starts]
    assert difference(torch.cat(chunks), checkpoint.logits(token_ids)) < TOLERANCE


def test_greedy_tokens_equal_those_of_transformers_and_vary(checkpoint, model):
    prompt = random_tokens(20, seed=3)
    tokens = greedy(model, prompt, 40)
    whole = torch.tensor([*prompt.tolist(), *tokens])
    expected = checkpoint.logits(whole)[len(prompt) - 1 : -1].argmax(-1)
    assert tokens == expected.tolist()
    best = checkpoint.logits(prompt).argmax(-1)
    assert torch.equal(logits_of(model, prompt).argmax(-1), best)
    assert len({*tokens, *best.tolist()}) >= 5


def test_the_described_number_of_parameters_is_that_of_the_checkpoint(checkpoint, model):
    stored = read_headers(find_weight_files(checkpoint.folder)).values()
    assert model.config.num_params == sum(prod(tensor.shape) for tensor in stored)
