"""What readers have in common: sizes of heads, activations, layer types, and refused values."""

from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    HeadSizes,
    optional_count,
    optional_number,
    read_attention,
    read_decoder,
    read_equal_heads,
    read_heads,
    read_layer_norm,
    read_layer_types,
    read_mlp,
    read_rms_norm,
    refuse_flag,
    same_layers,
)

ARCHITECTURE = "AcmeForCausalLM"
SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 77,
}


def values(**config: Any) -> ConfigValues:
    return ConfigValues({**SIZES, **config}, ARCHITECTURE)


def refused(match: str) -> Any:
    return pytest.raises(UnsupportedModelError, match=f"^{ARCHITECTURE}: .*{match}")


def test_heads_divide_the_hidden_size():
    assert read_heads(values()) == HeadSizes(4, 2, 8)
    assert read_heads(values(head_dim=None)) == HeadSizes(4, 2, 8)


def test_a_head_size_that_is_given_need_not_divide_the_hidden_size():
    assert read_heads(values(hidden_size=33, head_dim=8)).head_dim == 8
    with refused(r"hidden_size \(33\) is not a multiple of num_attention_heads \(4\)"):
        read_heads(values(hidden_size=33))


def test_odd_heads_are_refused():
    with refused(r"head_dim \(7\) must be even; quire does not support odd head sizes$"):
        read_heads(values(head_dim=7))


def test_without_kv_heads_there_are_as_many_as_query_heads():
    assert read_heads(values(num_key_value_heads=None)).num_kv_heads == 4
    assert read_equal_heads(values()) == HeadSizes(4, 4, 8)


@pytest.mark.parametrize("num_kv_heads", [3, 8])
def test_heads_that_do_not_divide_into_groups_are_refused(num_kv_heads):
    with refused(rf"num_attention_heads \(4\) .* num_key_value_heads \({num_kv_heads}\)"):
        read_heads(values(num_key_value_heads=num_kv_heads))


def test_a_silent_config_has_the_usual_attention_mlp_and_norms():
    attention = read_attention(values())
    assert attention.scale == 8**-0.5
    assert attention.rope is not None
    assert attention.rope.theta == 10_000.0
    assert (attention.qkv_bias, attention.output_bias) == (False, False)
    mlp = read_mlp(values())
    assert (mlp.width, mlp.activation, mlp.is_gated, mlp.has_bias) == (48, "silu", True, False)
    assert read_rms_norm(values()).eps == 1e-6
    assert read_rms_norm(values(), 1e-5).eps == 1e-5
    norm = read_layer_norm(values())
    assert (norm.kind, norm.eps, norm.has_weight, norm.has_bias) == ("layer", 1e-5, True, True)
    decoder = read_decoder(values(), same_layers(values(), attention, mlp), norm)
    assert (len(decoder.layers), decoder.max_positions) == (3, 77)
    assert decoder.tie_word_embeddings is False


def test_an_activation_that_quire_does_not_have_is_refused():
    assert read_mlp(values(hidden_act="gelu")).activation == "gelu"
    with refused("hidden_act 'geglu' is not supported; quire supports .*gelu.*silu"):
        read_mlp(values(hidden_act="geglu"))


def test_layer_types_of_the_config_go_before_the_pattern_of_the_family():
    kinds = [FULL, SLIDING, FULL]
    assert read_layer_types(values()) == (FULL,) * 3
    assert read_layer_types(values(), lambda i: SLIDING if i else FULL) == (FULL, SLIDING, SLIDING)
    assert read_layer_types(values(layer_types=kinds), lambda _: SLIDING) == tuple(kinds)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_layer_types_are_one_for_each_layer(count):
    with refused(rf"layer_types has {count} entries for num_hidden_layers \(3\)"):
        read_layer_types(values(layer_types=[FULL] * count))


def test_a_layer_type_that_the_family_does_not_have_is_refused():
    kinds = [FULL, "chunked_attention", SLIDING]
    with refused("layer_types chunked_attention are not supported"):
        read_layer_types(values(layer_types=kinds))
    with refused("layer_types chunked_attention, sliding_attention are not supported"):
        read_layer_types(values(layer_types=kinds), known=(FULL,))


def test_null_means_that_an_optional_value_is_not_there():
    assert optional_number(values(cap=None), "cap") is None
    assert optional_number(values(cap=2), "cap") == 2.0
    assert optional_count(values(), "window") is None
    assert optional_count(values(window=5), "window") == 5
    for read, wrong in ((optional_number, 0), (optional_count, 1.5)):
        with refused("cap in config.json must be"):
            read(values(cap=wrong), "cap")


def test_a_flag_that_is_not_supported_is_refused_with_the_reason():
    refuse_flag(values(), "turbo", "no published model has it")
    refuse_flag(values(turbo=False), "turbo", "no published model has it")
    with refused("turbo is not supported by this model class; no published model has it"):
        refuse_flag(values(turbo=True), "turbo", "no published model has it")
