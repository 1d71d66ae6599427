"""Gemma 3 against transformers, mutants that must differ, and config values: read and refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_parts import CONTEXT, load_model, make_model, random_tokens, written_model
from torch import Tensor
from transformers_model import transformers_model

from quire.errors import UnsupportedModelError
from quire.interfaces.model import Model
from quire.layers import Attention, QKNorm, RMSNorm, SiluAndMul
from quire.layers.attention.rope_parameters import RopeParameters
from quire.layers.attention.rope_scaling import LinearScaling
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import difference, logits_of
from quire.worker.loading.weight_loading import load_weights
from quire_models.decoder.decoder_model import DecoderForCausalLM
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.family_table import describe, read_decoder_config

ARCHITECTURE = "Gemma3ForCausalLM"
SIZES: dict[str, Any] = {
    "architectures": [ARCHITECTURE],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
}
TOLERANCE = 1e-4
NEW_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 777.0},
}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def read(config: dict[str, Any]) -> DecoderConfig:
    return read_decoder_config(ARCHITECTURE, config)


def ropes(config: dict[str, Any]) -> list[RopeParameters]:
    """Return the different rotary embeddings, in the order of the layers."""
    return [rope for rope, _ in read(config).ropes]


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
    assert read(saved) == read(written.config)


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
    description = describe(written.config)
    model = DecoderForCausalLM(description, replace(CONTEXT, dtype=torch.bfloat16))
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


def kinds(**config: Any) -> str:
    layers = describe({**SIZES, **config}).kv_layers
    return "".join("w" if layer.spec == "sliding_window" else "f" for layer in layers)


def test_the_description_says_which_layers_have_a_window():
    description = describe({**SIZES, "sliding_window": 512, "sliding_window_pattern": 3})
    assert [(layer.spec, layer.params) for layer in description.kv_layers[:3]] == [
        ("sliding_window", (("window", 512),)),
        ("sliding_window", (("window", 512),)),
        ("full_attention", ()),
    ]


def test_a_pattern_of_n_has_every_nth_layer_whole():
    assert kinds(sliding_window_pattern=3) == "wwfwwfw"
    assert kinds(sliding_window_pattern=1) == "fffffff"
    assert kinds() == "wwwwwfw"


def test_a_list_of_layer_types_is_followed_and_goes_before_the_pattern():
    types = ["full_attention", *["sliding_attention"] * 5, "full_attention"]
    assert kinds(layer_types=types, sliding_window_pattern=2) == "fwwwwwf"


def test_without_a_layer_that_has_one_there_is_no_window():
    config = {**SIZES, "layer_types": ["full_attention"] * 7, "sliding_window": None}
    assert all(layer.spec == "full_attention" for layer in describe(config).kv_layers)


def test_a_silent_config_is_that_of_transformers():
    description = describe(SIZES)
    first = description.kv_layers[0]
    assert (first.head_dim, first.num_kv_heads, first.params) == (256, 4, (("window", 4096),))
    assert description.max_model_len == 131_072
    decoder = read(SIZES)
    assert ropes(SIZES) == [RopeParameters(1e4), RopeParameters(1e6)]
    assert decoder.tie_word_embeddings
    assert {layer.attention.scale for layer in decoder.layers} == {1 / 16}


def test_a_stretched_context_stretches_the_long_range_alone():
    scaling = {"rope_type": "linear", "factor": 8.0}
    found = ropes({**SIZES, "rope_scaling": scaling})
    assert found == [RopeParameters(1e4), RopeParameters(1e6, LinearScaling(8.0))]


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_a_rotary_embedding_may_be_given_for_one_kind_of_layers(kind):
    entry = {kind: {"rope_type": "default", "rope_theta": 555.0}}
    found = ropes({**SIZES, "rope_parameters": entry})
    assert [rope.theta for rope in found if rope.theta != 555.0] == [
        1e4 if kind == "full_attention" else 1e6
    ]


def test_each_layer_rotates_as_its_kind_does():
    decoder = read({**SIZES, "sliding_window_pattern": 3})
    assert [decoder.rope_index(layer) for layer in range(7)] == [0, 0, 1, 0, 0, 1, 0]


def test_the_scale_of_queries_is_that_of_the_config_and_not_of_the_heads():
    layers = read({**SIZES, "query_pre_attn_scalar": 64}).layers
    assert {layer.attention.scale for layer in layers} == {1 / 8}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"hidden_activation": "geglu"}, "hidden_activation 'geglu'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping"),
        ({"layer_types": ["chunked_attention"] * 7}, "chunked_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries .* \\(7\\)"),
        ({"layer_types": ["full_attention"] * 8}, "layer_types has 8 entries .* \\(7\\)"),
        ({"sliding_window": None}, "no sliding_window"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window_pattern": "6"}, "sliding_window_pattern"),
        ({"query_pre_attn_scalar": -1}, "query_pre_attn_scalar"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters.full_attention"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "ntk"),
        ({"rope_local_base_freq": 0}, "rope_local_base_freq"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config, named):
    with pytest.raises(UnsupportedModelError, match=named) as caught:
        describe({**SIZES, **config})
    assert ARCHITECTURE in str(caught.value)


def test_the_first_layer_of_gemma2_has_a_window():
    """In files without `layer_types`, as Google wrote them."""
    config = {**SIZES, "num_attention_heads": 4, "max_position_embeddings": 77}
    layers = read_decoder_config("Gemma2ForCausalLM", {**config, "sliding_window": 9}).layers
    assert [layer.attention.window for layer in layers] == [9, None, 9, None, 9, None, 9]
