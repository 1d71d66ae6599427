"""Gemma 3 features against transformers, and mutants without them that must differ."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_parts import (
    CONTEXT,
    difference,
    load_model,
    logits_of,
    make_model,
    random_tokens,
    written_model,
)
from torch import Tensor
from transformers_model import transformers_model

from quire.interfaces.model import Model
from quire.layers import Attention, QKNorm, RMSNorm, SiluAndMul
from quire.testing.checkpoints import write_checkpoint
from quire.worker.loading.weight_loading import load_weights
from quire_models.gemma3 import Gemma3ForCausalLM
from quire_models.gemma3_config import describe_gemma3, read_gemma3

ARCHITECTURE = "Gemma3ForCausalLM"
TOLERANCE = 1e-4
NEW_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 777.0},
}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def reference_logits(folder: Path, token_ids: Tensor) -> Tensor:
    reference = transformers_model(folder, attn_implementation="eager")
    with torch.inference_mode():
        logits: Tensor = reference(token_ids.unsqueeze(0)).logits[0]
    return logits


@pytest.mark.parametrize(
    "config",
    [
        {"layer_types": ["full_attention", "sliding_attention"] * 3},
        {"layer_types": ["sliding_attention"] * 6},
        {"layer_types": ["full_attention"] * 6},
        {"rope_parameters": NEW_ROPES},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default"},
                "sliding_attention": None,
            }
        },
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope_theta": None, "rope_local_base_freq": None, "rope_parameters": NEW_ROPES},
        {"query_pre_attn_scalar": 100},
        {"sliding_window": 1},
    ],
    ids=lambda config: "-".join(config),
)
def test_every_spelling_means_what_it_means_to_transformers(tmp_path, config):
    written, model = written_model(tmp_path, ARCHITECTURE, **config)
    token_ids = random_tokens(120)
    expected = reference_logits(written.folder, token_ids)
    assert difference(logits_of(model, token_ids), expected) < TOLERANCE


def test_a_config_that_transformers_saved_is_read_alike(tmp_path):
    from transformers import AutoConfig

    written = write_checkpoint(tmp_path, ARCHITECTURE, rope_scaling=NEW_ROPES["full_attention"])
    saved = AutoConfig.from_pretrained(written.folder).to_diff_dict()
    assert "rope_local_base_freq" not in saved
    assert read_gemma3(saved) == read_gemma3(written.config)


@pytest.mark.parametrize("window", [6, 7, 8, 9])
def test_a_query_sees_as_many_tokens_as_the_window_has(tmp_path, window):
    layers = {"layer_types": ["sliding_attention"], "num_hidden_layers": 1}
    _, model = written_model(tmp_path, ARCHITECTURE, **layers, sliding_window=window)
    token_ids = random_tokens(20)
    last = logits_of(model, token_ids)[-1]
    for position in range(19):
        changed = token_ids.clone()
        changed[position] = (changed[position] + 1) % 320
        is_seen = not torch.equal(logits_of(model, changed)[-1], last)
        assert is_seen == (position > 19 - window), position


class Unchanged(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def swap_ropes(model: Any) -> None:
    first, second = (rotary.table for rotary in model.model.rotaries)
    both = first.clone(), second.clone()
    first.copy_(both[1])
    second.copy_(both[0])


def one_rope(model: Any) -> None:
    first, second = model.model.rotaries
    second.table.copy_(first.table)


def norms_without_one(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, RMSNorm | QKNorm):
            module.weight.sub_(1.0)


def no_norm_after(block: str) -> Callable[[Any], None]:
    def mutate(model: Any) -> None:
        for layer in model.model.layers.values():
            setattr(layer, f"post_{block}_layernorm", Unchanged())

    mutate.__name__ = f"no_norm_after_{block}"
    return mutate


def unscaled_embedding(model: Any) -> None:
    model.model.embedding_scale = 1.0


def scale_of_the_heads(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            object.__setattr__(module.params, "scale", module.head_dim**-0.5)


def silu(model: Any) -> None:
    for layer in model.model.layers.values():
        layer.mlp.activation = SiluAndMul(CONTEXT)


def move_windows(by: int) -> Callable[[Any], None]:
    def mutate(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, Attention) and module.params.sliding_window:
                window = module.params.sliding_window + by
                object.__setattr__(module.params, "sliding_window", window)

    mutate.__name__ = f"window{by:+}"
    return mutate


def window_everywhere(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            object.__setattr__(module.params, "sliding_window", 20)


MUTANTS = [
    swap_ropes,
    one_rope,
    norms_without_one,
    no_norm_after("attention"),
    no_norm_after("feedforward"),
    unscaled_embedding,
    scale_of_the_heads,
    silu,
    move_windows(1),
    move_windows(-1),
    window_everywhere,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
@pytest.mark.parametrize("tied", [True, False])
def test_a_mutant_is_seen(tmp_path, mutate, tied):
    written, model = written_model(tmp_path, ARCHITECTURE, tie_word_embeddings=tied)
    token_ids = random_tokens(60)
    expected = reference_logits(written.folder, token_ids)
    assert difference(logits_of(model, token_ids), expected) < TOLERANCE
    with torch.no_grad():
        mutate(model)
    assert difference(logits_of(model, token_ids), expected) > 30 * TOLERANCE


@pytest.mark.parametrize(
    "wrong",
    [
        {"sliding_window": 19},
        {"sliding_window_pattern": 2},
        {"rope_local_base_freq": 1100.0},
        {"rope_theta": 90000.0},
        {"rope_scaling": {"rope_type": "linear", "factor": 1.1}},
        {"query_pre_attn_scalar": 22},
        {"final_logit_softcapping": 1.0},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_wrong_config_value_is_seen(tmp_path, wrong):
    written = write_checkpoint(tmp_path, ARCHITECTURE)
    token_ids = random_tokens(200)
    expected = reference_logits(written.folder, token_ids)
    mutant: Model = make_model({**written.config, **wrong})
    load_weights(mutant, written.folder)
    assert difference(logits_of(mutant, token_ids), expected) > 30 * TOLERANCE


def test_half_precision_is_rounded_where_transformers_rounds(tmp_path):
    written = write_checkpoint(tmp_path, ARCHITECTURE, hidden_size=80, head_dim=16)
    description = describe_gemma3(written.config)
    model = Gemma3ForCausalLM(description, replace(CONTEXT, dtype=torch.bfloat16))
    load_weights(model, written.folder)
    scale = torch.tensor(80**0.5).bfloat16()
    token_ids = random_tokens(30)
    weight = written.weights["model.embed_tokens.weight"].bfloat16()
    assert float(scale) != 80**0.5
    assert torch.equal(model.model.embed(token_ids), weight[token_ids] * scale)


def test_two_pipeline_stages_share_the_layers(tmp_path):
    written, model = written_model(tmp_path, ARCHITECTURE)
    ours = [load_model(written, layers=part) for part in (range(2), range(2, 6))]
    names = [set(dict(stage.named_parameters())) for stage in ours]  # type: ignore[attr-defined]
    assert names[0] | names[1] == set(dict(model.named_parameters()))  # type: ignore[attr-defined]
