"""The table of families: descriptions without torch, and config values that are refused by name."""

import json
from functools import cache
from typing import Any

import pytest
from family_cases import CASES

from quire.errors import UnsupportedModelError
from quire.layers import Attention, MLAAttention
from quire_models.family_table import FAMILIES, describe, read_decoder_config

ARCHITECTURES = [family.architecture for family in FAMILIES]
NAMES = [(family, shape) for family, shapes in CASES.items() for shape in shapes]
ANY_CASE = pytest.mark.parametrize(("family", "shape"), NAMES, ids=["-".join(n) for n in NAMES])


class Watched(dict[str, Any]):
    """A config.json that records which keys are read."""

    def __init__(self, values: Any, read: set[str]) -> None:
        super().__init__(values)
        self.read = read

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


@cache
def config_text(family: str, shape: str) -> str:
    """Return the config.json of a case, as transformers writes it."""
    config = CASES[family][shape].transformers_config()
    return json.dumps({**json.loads(config.to_json_string()), "architectures": [family]})


def config_of(family: str, shape: str) -> dict[str, Any]:
    return json.loads(config_text(family, shape))


def replaced(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a config with one value, which may be in an object (`rope_parameters.factor`)."""
    outer, _, inner = key.partition(".")
    if not inner:
        return {**config, key: value}
    return {**config, outer: {**config[outer], inner: value}}


def value_of(config: dict[str, Any], key: str) -> Any:
    outer, _, inner = key.partition(".")
    return config[outer][inner] if inner else config.get(outer)


def keys_read(config: dict[str, Any]) -> set[str]:
    """Return the keys that a description reads in the file."""
    read: set[str] = set()
    describe(Watched(config, read))
    return read - {"architectures"}


def other_keys(config: dict[str, Any]) -> set[str]:
    """Return all other keys of the file, and those of objects in it."""
    inner = {
        f"{key}.{name}"
        for key, value in config.items()
        if isinstance(value, dict)
        for name in value
    }
    return (config.keys() | inner) - keys_read(config) - {"architectures"}


def wrong_values(value: Any) -> list[Any]:
    """Return values of other types than one in a config.json; a list fits no key."""
    wrong: list[Any] = [[{}]]
    if not isinstance(value, str | None):
        wrong.append("many")
    if isinstance(value, int | float) and not isinstance(value, bool):
        wrong += [True, float("nan"), -7]
    if isinstance(value, bool):
        wrong.append(1)
    return wrong


def test_an_architecture_stands_once_in_the_table():
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES)


def test_every_case_is_of_a_family():
    assert set(CASES) <= set(ARCHITECTURES)


def test_an_architecture_that_is_not_there_is_refused():
    with pytest.raises(UnsupportedModelError, match="AcmeForCausalLM is not in the table"):
        describe({"architectures": ["AcmeForCausalLM"]})


@ANY_CASE
def test_the_description_fits_the_modules(family, shape):
    from model_parts import make_model

    config = config_of(family, shape)
    description = describe(config)
    assert description.architecture == family
    layers = read_decoder_config(family, config).layers
    own = [each for each in layers if getattr(each.attention, "key_values_of", None) is None]
    assert (description.num_layers, len(description.kv_layers)) == (len(layers), len(own))
    modules: Any = dict(make_model(config).named_modules())  # type: ignore[attr-defined]
    for layer in description.kv_layers:
        attention = modules[layer.name]
        assert attention.name == layer.name
        if isinstance(attention, MLAAttention):
            assert layer.spec == "mla_attention"
            assert (layer.num_kv_heads, dict(layer.params)) == (
                1,
                {"latent_dim": attention.latent_dim},
            )
            assert layer.head_dim == attention.latent_dim + attention.rope_dim
            continue
        assert isinstance(attention, Attention)
        assert attention.num_kv_heads == layer.num_kv_heads
        assert attention.head_dim == layer.head_dim
        params = attention.params
        found = {"window": params.sliding_window, "chunk": params.attention_chunk}
        assert dict(layer.params) == {key: value for key, value in found.items() if value}
        assert layer.has_sinks == (params.sinks is not None)
        assert layer.has_alibi == (params.alibi_slopes is not None)


def check_refusal(error: UnsupportedModelError, family: str, key: str, wrong: Any) -> None:
    message = str(error)
    assert key.rpartition(".")[2] in message, f"{key} = {wrong!r}: {message}"
    assert family in message


@ANY_CASE
def test_a_value_of_a_wrong_type_is_refused_by_name(family, shape):
    config = config_of(family, shape)
    for key in sorted(keys_read(config)):
        for wrong in wrong_values(value_of(config, key)):
            with pytest.raises(UnsupportedModelError) as caught:
                pytest.fail(f"{key} = {wrong!r}: {describe(replaced(config, key, wrong))}")
            check_refusal(caught.value, family, key, wrong)


@ANY_CASE
def test_a_value_that_is_not_read_itself_is_refused_by_name_or_changes_nothing(family, shape):
    """Such as those of objects, of which each kind of rotary embedding reads some."""
    config = config_of(family, shape)
    expected = read_decoder_config(family, config)
    for key in sorted(other_keys(config)):
        for wrong in wrong_values(value_of(config, key)):
            try:
                found = read_decoder_config(family, replaced(config, key, wrong))
            except UnsupportedModelError as error:
                check_refusal(error, family, key, wrong)
            else:
                assert found == expected, f"{key} = {wrong!r}"
