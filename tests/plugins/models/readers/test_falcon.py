"""ALiBi of Falcon RW beyond what powers of two show: transformers rounds its biases to bfloat16."""

import pytest
import torch
from family_checkpoints import FamilyCase, write_family
from model_parts import make_model, random_tokens

from quire.testing.model.dense_attention import difference, logits_of
from quire.worker.loading.weight_loading import load_weights

NUM_HEADS = 16  # of which every other slope has no exact bfloat16
RW = {
    "alibi": True,
    "multi_query": False,
    "num_attention_heads": NUM_HEADS,
    "num_kv_heads": NUM_HEADS,
    "parallel_attn": False,
    "bias": True,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    case = FamilyCase("falcon", RW, attention="sdpa")
    return write_family(tmp_path_factory.mktemp("falcon"), case)


def distance(checkpoint) -> float:
    model, token_ids = make_model(checkpoint.config), random_tokens(200)
    load_weights(model, checkpoint.folder)
    return difference(logits_of(model, token_ids), checkpoint.logits(token_ids))


def exact_biases(mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """Biases of transformers before they are rounded, for a power of two heads."""
    slopes = 2.0 ** (-8 * torch.arange(1, num_heads + 1) / num_heads)
    positions = (mask.cumsum(-1) - 1)[:, None, :]
    return (slopes[:, None] * positions).reshape(num_heads, 1, -1).to(dtype)


def test_logits_equal_those_of_transformers_with_exact_biases(checkpoint, monkeypatch):
    module = "transformers.models.falcon.modeling_falcon.build_alibi_tensor"
    monkeypatch.setattr(module, exact_biases)
    assert distance(checkpoint) < 1e-4


def test_rounded_biases_are_near(checkpoint):
    assert 1e-4 < distance(checkpoint) < 0.03
