"""Attention capabilities: each requirement of a layer is checked against what is declared."""

from dataclasses import replace

import pytest

from quire.interfaces.attention import AttentionCapabilities, AttentionQuery

CPU, FLOAT = frozenset({"cpu"}), frozenset({"float32"})
PLAIN = AttentionCapabilities(devices=CPU, dtypes=FLOAT, kv_dtypes=FLOAT)
QUERY = AttentionQuery(
    device="cpu", dtype="float32", kv_dtype="float32", num_heads=4, num_kv_heads=2, head_dim=16
)
FEATURES = {
    "sliding_window": (8, "sliding windows"),
    "attention_chunk": (8, "chunked local attention"),
    "logit_soft_cap": (30.0, "a logit soft-cap"),
    "has_sinks": (True, "attention sinks"),
    "has_alibi": (True, "linear biases (ALiBi)"),
    "batch_invariant": (True, "batch-invariant mode"),
}


def test_what_asks_for_nothing_special_is_served():
    assert PLAIN.refusal(QUERY) is None


@pytest.mark.parametrize("asked", FEATURES)
def test_a_feature_is_served_only_if_it_is_declared(asked):
    value, name = FEATURES[asked]
    query = replace(QUERY, **{asked: value})
    declared = asked.removeprefix("has_")
    every = {other.removeprefix("has_"): True for other in FEATURES}
    assert PLAIN.refusal(query) == f"it does not support {name}"
    assert replace(PLAIN, **{declared: True}).refusal(query) is None
    assert replace(PLAIN, **every | {declared: False}).refusal(query) is not None


@pytest.mark.parametrize(
    ("declared", "asked", "reason"),
    [
        ({"head_dims": frozenset({64, 8})}, {}, "head size 16 is not among 8, 64"),
        ({"head_dims": frozenset()}, {}, "head size 16 is not among "),
        ({"block_sizes": frozenset({32})}, {"block_size": 16}, "block size 16 is not among 32"),
        ({"latent_dims": frozenset({8})}, {"latent_dim": 12}, "latent size 12 is not among 8"),
        ({"rope_dims": frozenset({12})}, {"latent_dim": 12}, "rotated key size 4 is not among 12"),
        ({}, {"device": "cuda"}, "device cuda is not among cpu"),
        ({}, {"dtype": "float16"}, "dtype float16 is not among float32"),
        ({}, {"kv_dtype": "int8"}, "KV dtype int8 is not among float32"),
        ({}, {"layout": "mla"}, "layout mla is not among kv"),
    ],
)
def test_what_is_not_declared_is_refused_with_what_is(declared, asked, reason):
    assert replace(PLAIN, **declared).refusal(replace(QUERY, **asked)) == reason


@pytest.mark.parametrize(
    ("declared", "asked"),
    [
        ({"head_dims": frozenset({16})}, {}),
        ({"block_sizes": frozenset({32})}, {}),
        ({"rope_dims": frozenset({4})}, {"latent_dim": 12}),
        ({"latent_dims": frozenset({12}), "rope_dims": frozenset({4})}, {"latent_dim": 12}),
        ({"latent_dims": frozenset({12}), "rope_dims": frozenset({4})}, {}),
    ],
)
def test_what_is_declared_is_served(declared, asked):
    assert replace(PLAIN, **declared).refusal(replace(QUERY, **asked)) is None


@pytest.mark.parametrize(
    ("least", "here", "is_served"),
    [(80, 80, True), (80, 90, True), (80, 75, False), (80, None, True), (None, 70, True)],
)
def test_a_gpu_needs_the_least_capability(least, here, is_served):
    declared = replace(PLAIN, devices=frozenset({"cuda"}), min_compute_capability=least)
    reason = declared.refusal(replace(QUERY, device="cuda", compute_capability=here))
    assert (reason is None) is is_served
    if reason:
        assert reason == "it needs a GPU of compute capability 8.0, and this one has 7.5"


def test_a_cpu_has_no_compute_capability():
    declared = replace(PLAIN, min_compute_capability=80)
    assert declared.refusal(replace(QUERY, compute_capability=70)) is None


def test_only_compiled_kernels_need_a_compiler():
    query = replace(QUERY, native_unavailable_reason="there is no g++")
    assert PLAIN.refusal(query) is None
    compiled = replace(PLAIN, needs_native=True)
    assert compiled.refusal(query) == "it runs compiled kernels: there is no g++"
    assert compiled.refusal(QUERY) is None
