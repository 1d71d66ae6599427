"""Every family against transformers on the same weights."""

from math import prod

import pytest
import torch
from family_cases import CASES
from family_checkpoints import scene_of, write_family
from model_parts import check_greedy

from quire.testing.model.model_checks import check_chunks, check_logits
from quire.worker.loading.checkpoint_files import find_weight_files, read_headers

NAMES = [(family, shape) for family, shapes in CASES.items() for shape in shapes]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=NAMES, ids="-".join)
def scene(request, tmp_path_factory):
    family, shape = request.param
    written = write_family(tmp_path_factory.mktemp("family"), CASES[family][shape])
    assert written.config["architectures"] == [family]
    return scene_of(written)


def test_logits_equal_those_of_transformers(scene):
    check_logits(scene)


def test_chunks_give_the_logits_of_transformers(scene):
    check_chunks(scene)


def test_greedy_tokens_equal_those_of_transformers_and_vary(scene):
    check_greedy(scene)


def test_the_described_number_of_parameters_is_that_of_the_checkpoint(scene):
    stored = read_headers(find_weight_files(scene.folder)).values()
    assert scene.description.num_params == sum(prod(tensor.shape) for tensor in stored)
