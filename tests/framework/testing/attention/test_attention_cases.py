"""Every declared capability becomes a test case, and nothing else does."""

from dataclasses import replace

import pytest

from quire.interfaces.attention import AttentionCapabilities
from quire.testing.attention.attention_cases import HEADS, DeclaredCases
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.kv_backend.kv_backend_cases import case_name

BARE = AttentionCapabilities(
    devices=frozenset({"cpu"}),
    dtypes=frozenset({"bfloat16", "float16"}),
    kv_dtypes=frozenset({"bfloat16", "int8"}),
    head_dims=frozenset({64, 80, 96, 256}),
    block_sizes=frozenset({16, 32, 64, 128}),
)


def cases(declared=BARE, fuses_rotary=False):
    return DeclaredCases(declared, "cpu", fuses_rotary)


def test_every_head_size_meets_every_block_size_and_every_ratio_of_heads():
    found = list(cases().sizes())
    assert {(c.head_dim, c.block_size) for c in found} == {
        (d, s) for d in BARE.head_dims for s in BARE.block_sizes
    }
    for head_dim in BARE.head_dims:
        assert {(c.num_heads, c.num_kv_heads) for c in found if c.head_dim == head_dim} == set(
            HEADS
        )


def test_the_plain_case_is_the_usual_size_in_a_declared_type():
    plain = cases().plain
    assert (plain.head_dim, plain.block_size) == (64, 16)
    assert (plain.dtype, plain.kv_dtype) == ("bfloat16", "bfloat16")


def test_types_are_the_declared_pairs():
    pairs = list(cases().types())
    assert set(pairs) == {(d, kv) for d in BARE.dtypes for kv in BARE.kv_dtypes}
    assert pairs[0] == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    "name", ["sinks", "alibi", "rotary", "captured", "captured_whole", "invariant"]
)
def test_what_is_not_declared_is_not_tried(name):
    assert not list(getattr(cases(), name)())


def test_a_declared_feature_is_tried_alone_and_with_others():
    declared = replace(
        BARE, sinks=True, sliding_window=True, logit_soft_cap=True, batch_invariant=True
    )
    found = list(cases(declared).sinks())
    assert all(case.has_sinks for case in found)
    special = [(case.window, case.soft_cap, case.batch_invariant) for case in found]
    assert special == [
        (None, None, False),
        (5, None, False),
        (None, 2.0, False),
        (None, None, True),
    ]
    assert any(case.has_sinks for case in cases(declared).invariant())


def test_linear_biases_are_tried_alone_and_with_others():
    declared = replace(
        BARE, alibi=True, sinks=True, sliding_window=True, batch_invariant=True, graphs="decode"
    )
    found = list(cases(declared).alibi())
    assert all(case.has_alibi for case in found)
    assert {(case.window, case.has_sinks, case.batch_invariant) for case in found} == {
        (None, False, False),
        (33, False, False),
        (None, True, False),
        (None, False, True),
    }
    assert {(case.dtype, case.kv_dtype) for case in found} == set(cases(declared).types())
    assert any(case.has_alibi for case in cases(declared).invariant())
    assert any(case.has_alibi for case in cases(declared).captured())


def test_steps_of_any_tokens_are_captured_for_full_support_alone():
    for graphs, whole in (("decode", False), ("full", True)):
        found = cases(replace(BARE, graphs=graphs), fuses_rotary=True)
        assert [case.rotary for case in found.captured() if case.rotary] == ["normed"]
        assert {case.kv_dtype for case in found.captured()} == {"bfloat16", "int8"}
        assert bool(list(found.captured_whole())) is whole


def test_rotary_embeddings_are_tried_with_every_cache_dtype():
    found = list(cases(fuses_rotary=True).rotary())
    assert {case.rotary for case in found} == {"plain", "normed"}
    assert {case.kv_dtype for case in found} == BARE.kv_dtypes


def test_a_tolerance_is_that_of_the_coarser_type():
    exact = SceneSizes()
    assert exact.tolerance == replace(exact, kv_dtype="float8_e4m3fn").tolerance == 2e-5
    assert replace(exact, dtype="bfloat16", kv_dtype="int8").tolerance == 3e-2
    assert replace(exact, kv_dtype="int8", rotary="normed").tolerance == 3e-2


def test_names_tell_cases_apart():
    special = [
        {"window": 5},
        {"chunk": 5},
        {"soft_cap": 2.0},
        {"has_sinks": True},
        {"has_alibi": True},
        {"rotary": "normed"},
        {"batch_invariant": True},
        {"kv_dtype": "int8"},
        {"head_dim": 80},
        {},
    ]
    names = [case_name(SceneSizes(**each)) for each in special]
    assert len(set(names)) == len(names)
    assert names[-1] == "H4-K2-D64-S16-float32"
    assert case_name(("float32", "int8")) == "float32-int8"
