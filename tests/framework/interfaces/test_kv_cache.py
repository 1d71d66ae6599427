"""Byte counts of a cache plan, and the defaults of KV-cache specs."""

import pytest

from quire.interfaces.kv_cache import (
    DTYPE_BYTES,
    SCALE_BYTES,
    KVGroup,
    KVLayer,
    KVPlan,
    KVSpecCapabilities,
    KVTensor,
)
from quire.testing.whole_context import WholeContext


class AnotherContext(WholeContext):
    pass


def layer(name, head_dim=8, **params):
    return KVLayer(name, "whole", 2, head_dim, tuple(params.items()))


def spec(name, head_dim=8, block_size=4):
    return WholeContext(layer(name, head_dim), block_size, "float32")


def group(*specs):
    return KVGroup(specs[0], tuple(each.layer.name for each in specs), specs)


LONG, SHORT, TWIN = spec("long", 16), spec("short"), spec("twin")  # 512, 256 and 256 bytes a page
PLAN = KVPlan(
    num_blocks=10,
    groups=(group(LONG, SHORT), group(TWIN)),
    tensors=(KVTensor(10 * 512, ("long", "twin")), KVTensor(10 * 256, ("short",))),
)
EVEN = KVPlan(10, (group(SHORT), group(TWIN)), (KVTensor(10 * 256, ("short", "twin")),))


def test_types_have_the_bytes_that_torch_gives_them():
    import torch

    assert {name: getattr(torch, name).itemsize for name in DTYPE_BYTES} == DTYPE_BYTES
    assert {"int8": torch.float32.itemsize} == SCALE_BYTES


def test_a_row_is_a_head_and_its_scale():
    rows = {name: WholeContext(layer("a", 8), 4, name).row_bytes for name in DTYPE_BYTES}
    assert rows == {"float32": 32, "bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "int8": 12}


def test_a_block_has_bytes_in_every_tensor():
    assert [PLAN.page_bytes(tensor) for tensor in PLAN.tensors] == [512, 256]
    assert PLAN.bytes_a_block == 512 + 256
    assert PLAN.num_bytes == 10 * (512 + 256)
    assert PLAN.block_size == 4


def test_what_the_layers_of_a_group_cannot_use_is_padding():
    assert [PLAN.padding_bytes(group) for group in PLAN.groups] == [0, 512]


def test_layers_with_less_than_their_pages_are_padded():
    assert PLAN.padded_layers == {"twin"}
    assert not EVEN.padded_layers


def test_a_padded_layer_is_found_behind_the_first_of_its_group():
    tensors = (KVTensor(10 * 512, ("long",)), KVTensor(10 * 512, ("short",)))
    assert KVPlan(10, (group(LONG, SHORT),), tensors).padded_layers == {"short"}


def test_without_layers_there_is_nothing():
    empty = KVPlan(1, ())
    assert (empty.block_size, empty.num_bytes, empty.bytes_a_block) == (0, 0, 0)
    assert not empty.padded_layers


def test_a_parameter_that_is_missing_has_a_default():
    assert layer("a", window=3).param("window") == 3
    assert layer("a").param("window") is None
    assert layer("a").param("window", 5) == 5


def test_a_key_says_class_blocks_and_parameters_and_nothing_else():
    key = spec("a").key
    assert key == spec("b", head_dim=16).key
    assert key == WholeContext(layer("a"), 4, "int8", 2).key
    assert key != spec("a", block_size=8).key
    assert key != AnotherContext(layer("a"), 4, "float32").key
    assert key != WholeContext(layer("a", window=3), 4, "float32").key


def test_a_spec_with_other_blocks_is_otherwise_the_same():
    longer = WholeContext(layer("a"), 4, "int8", 2).with_block_size(16)
    assert (longer.block_size, longer.kv_dtype, longer.tp_size) == (16, "int8", 2)
    assert longer.layer == layer("a")


def test_by_default_a_spec_keeps_every_full_block_with_hits_or_without():
    its = AnotherContext(layer("a"), 4, "float32")
    assert its.cacheable_blocks(range(2, 5), 21) == range(2, 5)
    assert its.without_prefix_hits() is its


def test_a_layer_on_one_device_is_the_default():
    assert spec("a").tp_size == 1


@pytest.mark.parametrize(
    ("num_tokens", "lookahead", "expected"), [(0, 0, 0), (1, 0, 1), (4, 0, 1), (4, 1, 2), (8, 9, 5)]
)
def test_the_plainest_spec_keeps_every_token(num_tokens, lookahead, expected):
    its = spec("a")
    assert its.blocks_needed(num_tokens, lookahead) == expected
    assert its.max_blocks_held(num_tokens + lookahead, 1) == expected
    assert not its.freeable_blocks(num_tokens)


def test_the_plainest_spec_finds_what_stands_before_the_first_gap():
    prefixes = [[], [True, True], [True, False, True], [False, True]]
    assert [spec("a").cached_prefix(each) for each in prefixes] == [0, 2, 1, 0]


def test_a_spec_that_declares_nothing_has_layers_that_any_backend_serves():
    assert KVSpecCapabilities() == KVSpecCapabilities(
        layout="kv", window_param=None, chunk_param=None
    )
