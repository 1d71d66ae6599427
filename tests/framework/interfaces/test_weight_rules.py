"""Weight rules: names follow patterns, and a split tensor has exactly the parts it was fused of."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.errors import PluginError
from quire.interfaces.weight_rules import WeightPrefixes, WeightRule, WeightRules

QKV = tuple(f"model.layers.{{layer}}.self_attn.{side}_proj" for side in "qkv")
C_ATTN = WeightRule("transformer.h.{layer}.attn.c_attn", QKV, transposed=True)
EXPERTS = "model.layers.{layer}.mlp.experts"
GATE_UP = WeightRule(
    f"{EXPERTS}.gate_up_proj",
    tuple(f"{EXPERTS}.{{expert}}.{side}_proj.weight" for side in ("gate", "up")),
)


def fuse(parts: list[Tensor], groups: int) -> Tensor:
    """Stack rows by the definition: each group has the next rows of each part, in order."""
    rows = []
    for group in range(groups):
        for part in parts:
            size = len(part) // groups
            rows += [part[group * size + row] for row in range(size)]
    return torch.stack(rows)


@st.composite
def fused_parts(draw) -> tuple[list[Tensor], int, bool]:
    groups = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    columns = draw(st.sampled_from([(), (1,), (3,)]))
    numbers = iter(range(10_000))
    parts = [
        torch.tensor([next(numbers) for _ in range(groups * size * (columns or (1,))[0])])
        .float()
        .view(groups * size, *columns)
        for size in sizes
    ]
    return parts, groups, draw(st.booleans())


@given(fused_parts())
def test_a_split_tensor_has_the_parts_that_were_fused(case):
    parts, groups, transposed = case
    rule = WeightRule("fused", tuple(f"part{i}" for i in range(len(parts))), groups, transposed)
    shapes = [tuple(part.shape) for part in parts]
    fused = fuse(parts, groups)
    stored = fused.T.contiguous() if transposed and fused.dim() == 2 else fused
    assert rule.fused_shape(shapes) == tuple(stored.shape)
    for found, part in zip(rule.split(stored, shapes), parts, strict=True):
        assert torch.equal(found, part)


@given(fused_parts())
def test_parts_that_are_fused_again_are_the_tensor(case):
    parts, groups, _ = case
    rule = WeightRule("fused", tuple(f"part{i}" for i in range(len(parts))), groups)
    fused = fuse(parts, groups)
    again = fuse(list(rule.split(fused, [tuple(part.shape) for part in parts])), groups)
    assert torch.equal(again, fused)


def test_a_group_for_each_head_has_its_query_key_and_value():
    rule = WeightRule("query_key_value", ("q", "k", "v"), groups=2)
    q, k, v = rule.split(torch.arange(12), [(4,), (4,), (4,)])
    assert [q.tolist(), k.tolist(), v.tolist()] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]


def test_a_group_for_each_kv_head_has_several_queries():
    rule = WeightRule("wqkv", ("q", "k", "v"), groups=2)
    q, k, v = rule.split(torch.arange(8), [(4,), (2,), (2,)])
    assert [q.tolist(), k.tolist(), v.tolist()] == [[0, 1, 4, 5], [2, 6], [3, 7]]


def test_gate_and_up_alternate_with_a_group_for_each_row():
    rule = WeightRule("gate_up", ("gate", "up"), groups=3)
    gate, up = rule.split(torch.arange(6), [(3,), (3,)])
    assert (gate.tolist(), up.tolist()) == ([0, 2, 4], [1, 3, 5])


def test_a_name_matches_with_its_numbers_and_its_suffix():
    match = WeightRules([C_ATTN]).match("transformer.h.12.attn.c_attn.bias")
    assert match is not None
    assert match.rule is C_ATTN
    assert match.part_names() == tuple(
        f"model.layers.12.self_attn.{side}_proj.bias" for side in "qkv"
    )


@pytest.mark.parametrize(
    "name",
    ["transformer.h.x.attn.c_attn.weight", "h.1.attn.c_attn.weight",
     "transformer.h.1.attn.c_attn.weight.scale", "transformer.h.1.attn.c_attn2.weight",
     "transformer.h.²3.attn.c_attn.weight", "transformer.h.٣.attn.c_attn.weight", "weight", ""],
)  # fmt: skip
def test_other_names_do_not_match(name):
    assert WeightRules([C_ATTN]).match(name) is None


def test_a_module_is_matched_without_a_suffix():
    rules = WeightRules([C_ATTN, GATE_UP])
    match = rules.match_module("transformer.h.3.attn.c_attn")
    assert match is not None
    assert match.part_names()[0] == "model.layers.3.self_attn.q_proj"
    assert rules.match_module("transformer.h.3.attn.c_attn.weight") is None


def test_a_stacked_tensor_is_named_whole_and_has_parts_for_each_index():
    match = WeightRules([GATE_UP]).match("model.layers.1.mlp.experts.gate_up_proj")
    assert match is not None
    assert match.part_names(7) == (
        "model.layers.1.mlp.experts.7.gate_proj.weight",
        "model.layers.1.mlp.experts.7.up_proj.weight",
    )


def test_digits_of_a_pattern_are_themselves():
    rules = WeightRules(
        [WeightRule("mlp.0", ("up",)), WeightRule("mlp.{layer}.w", ("{layer}.up",))]
    )
    assert rules.match("mlp.1.weight") is None
    assert rules.match("mlp.0.weight").part_names() == ("up.weight",)  # type: ignore[union-attr]
    assert rules.match("mlp.1.w.weight").part_names() == ("1.up.weight",)  # type: ignore[union-attr]


def test_the_first_rule_that_matches_applies():
    first, second = WeightRule("a.{i}", ("b.{i}",)), WeightRule("a.{i}", ("c.{i}",))
    match = WeightRules([first, second]).match("a.1.weight")
    assert match is not None
    assert match.rule is first


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("model.layers.4.self_attn.k_proj.weight", "transformer.h.4.attn.c_attn.weight"),
        ("model.layers.1.mlp.experts.7.up_proj.weight", "model.layers.1.mlp.experts.gate_up_proj"),
        ("model.norm.weight", "model.norm.weight"),
    ],
)
def test_a_part_has_the_name_of_the_tensor_that_holds_it(part, name):
    assert WeightRules([C_ATTN, GATE_UP]).checkpoint_name(part) == name


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"parts": ()}, "no parts"),
        ({"groups": 0}, "0 groups"),
        ({"parts": ("a.{layer}", "b")}, "same placeholders"),
        ({"parts": ("a",)}, "same placeholders"),
        ({"parts": ("a.{layer}.{expert}.{head}",)}, "same placeholders"),
        ({"parts": ("a{layer}",)}, "between dots"),
        ({"parts": ("a.{Layer}",)}, "between dots"),
        ({"parts": ("a.{layer}.b.{layer}",)}, "may stand in it once"),
        ({"checkpoint": "c.{layer}.{layer}"}, "may stand in it once"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(options, reason):
    with pytest.raises(PluginError, match=reason):
        WeightRule(**{"checkpoint": "c.{layer}", "parts": ("a.{layer}",), **options})


@pytest.mark.parametrize(
    "shapes", [[(4, 2), (4, 3)], [(3, 2), (4, 2)], [(), (4,)]], ids=["columns", "rows", "scalar"]
)
def test_parts_that_do_not_fit_together_are_refused(shapes):
    with pytest.raises(PluginError, match="cannot fuse parts of the shapes"):
        WeightRule("qkv", ("q", "k"), groups=2).fused_shape(shapes)


PREFIXES = WeightPrefixes(
    {
        "language_model.model.": "model.",
        "language_model.lm_head.": "lm_head.",
        "model.language_model.": "model.",
    }
)


@pytest.mark.parametrize(
    "name",
    ["language_model.model.norm.weight", "model.language_model.norm.weight", "model.norm.weight"],
)
def test_every_layout_has_the_names_of_the_rules(name):
    assert PREFIXES.replaced(name) == "model.norm.weight"


@pytest.mark.parametrize(
    ("stored", "norm", "head"),
    [
        ("language_model.model.a", "language_model.model.norm", "language_model.lm_head.weight"),
        ("model.language_model.a", "model.language_model.norm", "lm_head.weight"),
        ("model.a", "model.norm", "language_model.lm_head.weight"),
        ("tower.a", "language_model.model.norm", "language_model.lm_head.weight"),
    ],
)
def test_a_name_is_restored_in_the_layout_of_the_checkpoint(stored, norm, head):
    assert PREFIXES.restored("model.norm", [stored]) == norm
    assert PREFIXES.restored("lm_head.weight", [stored]) == head
    assert PREFIXES.restored("other.weight", [stored]) == "other.weight"
