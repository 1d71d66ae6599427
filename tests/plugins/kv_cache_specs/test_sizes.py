"""A size is a positive integer; anything else is refused with the name of its layer."""

import pytest

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.sizes import check_dtype, check_positive, size_param


def layer(**params):
    return KVLayer("layers.0", "sliding_window", 4, 32, tuple(params.items()))


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "3", None])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(SettingsError, match=r"window of layers\.0 must be at least 1, got"):
        check_positive("layers.0", window=size)


def test_each_of_several_sizes_is_checked():
    check_positive("layers.0", one=1, two=2**40)
    with pytest.raises(SettingsError, match=r"two of layers\.0 must be at least 1, got 0"):
        check_positive("layers.0", one=1, two=0)


def test_a_size_of_nothing_is_not_missing():
    with pytest.raises(SettingsError, match=r"window of layers\.0 must be at least 1, got 0"):
        size_param(layer(window=0), "window")
    with pytest.raises(SettingsError, match=r"layers\.0 must be at least 1, got -3"):
        size_param(layer(window=-3), "window")
    with pytest.raises(SettingsError, match=r"of layers\.0 needs the parameter 'window'"):
        size_param(layer(), "window")
    assert size_param(layer(window=7), "window") == 7


def test_an_unknown_type_is_refused_with_those_that_are_known():
    check_dtype("layers.0", "int8")
    with pytest.raises(SettingsError, match=r"'float12' for layers\.0 \(known: bfloat16, "):
        check_dtype("layers.0", "float12")
