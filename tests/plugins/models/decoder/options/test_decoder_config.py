"""Options of a decoder and the model description, without torch."""

from dataclasses import replace
from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire.interfaces.model import ModelDescription
from quire.layers.attention.rope_parameters import RopeParameters
from quire_models.decoder.options.attention_config import AttentionConfig, NormConfig, QKNormConfig
from quire_models.decoder.options.decoder_config import (
    DecoderConfig,
    LayerConfig,
    describe_decoder,
)
from quire_models.decoder.options.layer_inputs_config import LayerInputsConfig
from quire_models.decoder.options.mlp_config import MLPConfig

ARCHITECTURE = "AcmeForCausalLM"
ATTENTION = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0)
MLP = MLPConfig(width=48)
NORM = NormConfig(eps=1e-6)
QK_NORM = QKNormConfig(norm=NORM)
SLOW, FAST = RopeParameters(1e6), RopeParameters(1e4)


def decoder_of(*attentions: AttentionConfig, **options: Any) -> DecoderConfig:
    layers = tuple(LayerConfig(attention=attention, mlp=MLP) for attention in attentions)
    sizes: dict[str, Any] = {"vocab_size": 100, "hidden_size": 32, "max_positions": 77}
    return DecoderConfig(layers=layers, norm=NORM, **(sizes | options))


def describe(config: dict[str, Any], *attentions: AttentionConfig, **options: Any) -> Any:
    decoder = decoder_of(*(attentions or (ATTENTION,)), **options)
    description: ModelDescription = describe_decoder(ARCHITECTURE, config, decoder)
    return description


def test_the_description_has_what_the_engine_plans_with():
    config = {"dtype": "bfloat16"}
    description = describe(config, ATTENTION, replace(ATTENTION, num_heads=8))
    assert description.architecture == ARCHITECTURE
    assert description.config is config
    assert (description.vocab_size, description.hidden_size) == (100, 32)
    assert (description.num_layers, description.num_heads) == (2, 8)
    assert description.max_model_len == 77
    assert description.checkpoint_dtype == "bfloat16"
    assert description.quantization is None
    assert description.sharded_sizes == {"intermediate_size": 48}


def test_each_layer_has_the_kv_cache_of_its_attention():
    windowed = replace(ATTENTION, window=9, num_kv_heads=1)
    chunked = replace(ATTENTION, chunk=16, has_sinks=True)
    layers = describe({}, ATTENTION, windowed, chunked).kv_layers
    assert [layer.name for layer in layers] == [
        f"model.layers.{index}.self_attn.attention" for index in range(3)
    ]
    assert [(layer.spec, layer.params) for layer in layers] == [
        ("full_attention", ()),
        ("sliding_window", (("window", 9),)),
        ("chunked_local_attention", (("chunk", 16),)),
    ]
    assert [(layer.num_kv_heads, layer.head_dim) for layer in layers] == [(2, 8), (1, 8), (2, 8)]
    assert [layer.has_sinks for layer in layers] == [False, False, True]
    assert [layer.layer_index for layer in layers] == [0, 1, 2]


def test_a_layer_that_uses_the_keys_of_another_has_no_cache_and_is_not_divided_from_it():
    shared = replace(ATTENTION, key_values_of=0)
    description = describe({}, ATTENTION, shared)
    assert [layer.layer_index for layer in description.kv_layers] == [0]
    assert "use the keys and values of others" in description.indivisible_reason
    assert describe({}, ATTENTION).indivisible_reason == ""
    assert shared.num_params(32) == ATTENTION.num_params(32) - 2 * 2 * 8 * 32


@pytest.mark.parametrize(
    "attentions",
    [
        (ATTENTION, replace(ATTENTION, key_values_of=1)),
        (ATTENTION, replace(ATTENTION, key_values_of=0, window=9)),
        (ATTENTION, *[replace(ATTENTION, key_values_of=index) for index in (0, 1)]),
    ],
    ids=["itself", "other options", "one without its own"],
)
def test_keys_of_a_layer_that_has_none_or_attends_otherwise_are_refused(attentions):
    with pytest.raises(UnsupportedModelError, match="which must be an earlier layer with keys"):
        decoder_of(*attentions)


def test_sinks_of_layers_that_use_the_keys_of_others_are_refused():
    own = replace(ATTENTION, has_sinks=True)
    with pytest.raises(UnsupportedModelError, match=r"layer 1 uses .* layer 0; sinks are not"):
        decoder_of(own, replace(own, key_values_of=0))


def test_inputs_of_layers_need_a_placement_that_adds_them():
    inputs = LayerInputsConfig(size=6, vocab_size=100, activation="silu", norm=NORM)
    with pytest.raises(UnsupportedModelError, match="scaled_sandwich only, not with pre"):
        decoder_of(ATTENTION, layer_inputs=inputs)
    decoder = decoder_of(ATTENTION, placement="scaled_sandwich", layer_inputs=inputs)
    description = describe_decoder(ARCHITECTURE, {}, decoder)
    assert description.num_table_params == 600
    assert "made from token ids" in description.indivisible_reason


def test_the_older_spelling_of_the_dtype_is_read_and_the_newer_goes_before_it():
    assert describe({"torch_dtype": "float16"}).checkpoint_dtype == "float16"
    both = {"dtype": "bfloat16", "torch_dtype": "float16"}
    assert describe(both).checkpoint_dtype == "bfloat16"
    assert describe({}).checkpoint_dtype == "float32"


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_tied_head_is_said_to_be_so(is_tied):
    assert describe({}, tie_word_embeddings=is_tied).has_tied_head == is_tied


def test_a_soft_cap_of_scores_is_said_for_the_choice_of_backends():
    assert describe({}).logit_soft_cap is None
    assert describe({}, replace(ATTENTION, logit_soft_cap=5.0)).logit_soft_cap == 5.0


def test_a_quantized_checkpoint_names_its_method():
    quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert describe(quantized).quantization == "gptq"


def test_equal_rotary_embeddings_are_computed_once_and_layers_know_theirs():
    ropes = (FAST, SLOW, None, FAST)
    decoder = decoder_of(*(replace(ATTENTION, rope=rope) for rope in ropes))
    assert decoder.ropes == ((FAST, 8), (SLOW, 8))
    assert [decoder.rope_index(layer) for layer in range(4)] == [0, 1, None, 0]


def test_a_rotary_embedding_of_other_heads_is_another():
    wide = replace(ATTENTION, rope=FAST, head_dim=16)
    decoder = decoder_of(replace(ATTENTION, rope=FAST), wide)
    assert decoder.ropes == ((FAST, 8), (FAST, 16))
    assert [decoder.rope_index(layer) for layer in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("placement", "num_norms"),
    [("pre", 2), ("post", 2), ("sandwich", 4), ("post_sum", 2), ("parallel", 1),
     ("parallel_two_norms", 2)],
)  # fmt: skip
def test_a_layer_has_as_many_norms_as_its_placement(placement, num_norms):
    one = decoder_of(ATTENTION, placement=placement).num_params
    two = decoder_of(ATTENTION, ATTENTION, placement=placement).num_params
    assert two - one == LayerConfig(attention=ATTENTION, mlp=MLP).num_params(32) + num_norms * 32


@pytest.mark.parametrize(
    ("over", "size"), [("head", 2 * 8), ("heads", (4 + 2) * 8), ("whole", (4 + 2) * 8)]
)
def test_a_norm_of_queries_and_keys_counts_what_it_is_over(over, size):
    with_norm = replace(ATTENTION, qk_norm=replace(QK_NORM, over=over))
    assert with_norm.num_params(32) - ATTENTION.num_params(32) == size
