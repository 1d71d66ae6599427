"""Selection of the compute dtype on a CPU, and what hidden states and the KV cache then are."""

from dataclasses import replace
from pathlib import Path

import pytest
from installed import sites

from quire.compose.checkpoint import Checkpoint
from quire.compose.compose import compose
from quire.compose.sizes.weight_bytes import weight_bytes
from quire.config import Settings
from quire.errors import RefusedError
from quire.machine.machine import Machine
from quire.plugins.loading import load_plugins

site = pytest.fixture(sites)

NO_COMPILER = Machine(frozenset({"avx2", "avx512_bf16"}), has_cuda=False)
COMPILES = replace(NO_COMPILER, native_unavailable_reason=None)
MULTIPLIES = replace(COMPILES, native_bf16_unavailable_reason=None)
GPU = replace(MULTIPLIES, has_cuda=True, has_triton=True, compute_capability=90)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
ACME = """
    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities
    from quire.interfaces.quantization import QuantizationCapabilities

    CPU, FLOAT32 = frozenset({"cpu"}), frozenset({"float32"})

    @hookimpl
    def register_quantizations(registry):
        there = QuantizationCapabilities(
            devices=CPU, dtypes=frozenset({METHOD}), from_plain_checkpoint=True,
            lossless_for=frozenset({"bfloat16"}), priority=99, OPTIONS
        )
        registry.add("acme", "quire.interfaces.quantization:Quantization", capabilities=there)

    @hookimpl
    def register_attention_backends(registry):
        there = AttentionCapabilities(
            devices=CPU, dtypes=frozenset({BACKEND}), kv_dtypes=frozenset({STORED}), priority=99
        )
        registry.add("acme", "quire.errors:QuireError", capabilities=there)
"""


def acme(method="'float32'", options="", backend="'float32'", stored="'float32'"):
    source = ACME.replace("METHOD", method).replace("OPTIONS", options)
    return source.replace("BACKEND", backend).replace("STORED", stored)


def composed(machine=MULTIPLIES, config=(), probe=None, **options):
    settings = Settings.from_options(options)
    checkpoint = Checkpoint("tiny", Path("tiny"), CONFIG | dict(config))
    return compose(settings, load_plugins(settings.plugins), checkpoint, "", machine, probe)


def types(composition):
    """Return the compute dtype, and those of hidden states and of the KV cache."""
    return composition.dtype.value, composition.hidden_dtype, composition.kv_dtype


def parts(composition):
    method = composition.quantization.value
    return (
        composition.kernels.value,
        None if method is None else method.name,
        composition.attention_backends[0].name,
    )


IN_BFLOAT16 = ("bfloat16", "float32", "bfloat16")
IN_FLOAT32 = ("float32", "float32", "float32")
BY_TORCH = ("bfloat16", "bfloat16", "bfloat16")


def test_a_bfloat16_checkpoint_is_computed_in_bfloat16_where_kernels_multiply_it():
    composition = composed()
    assert types(composition) == IN_BFLOAT16
    assert parts(composition) == ("native", "bf16", "cpu")
    assert composition.rounds_inputs
    assert not composition.rounds_weights
    assert composition.dtype.reason == (
        "the checkpoint's own, and this processor multiplies it; --dtype float32 computes without "
        "rounding"
    )
    assert composition.weights == (
        "bf16 (auto: it is lossless for bfloat16 weights; products with bfloat16 inputs)"
    )
    assert composition.cpu_graphs.value is True
    assert ("computing", "native", "bfloat16", "bfloat16 KV cache") in composition.fingerprint()


GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}}


def test_codes_of_a_bfloat16_checkpoint_are_multiplied_in_bfloat16():
    composition = composed(config=GPTQ)
    assert types(composition) == IN_BFLOAT16
    assert parts(composition) == ("native", "codes", "cpu")
    assert composition.dtype.reason.startswith("the checkpoint's own, and this processor")
    assert composition.weights == (
        "codes (the checkpoint's own: gptq; products with bfloat16 inputs)"
    )


@pytest.mark.parametrize(
    ("machine", "stored", "options"),
    [
        (MULTIPLIES, "bfloat16", {"dtype": "float32"}),
        (MULTIPLIES, "float16", {}),
        (COMPILES, "bfloat16", {}),
    ],
)
def test_codes_are_multiplied_in_float32_as_other_weights_are(machine, stored, options):
    composition = composed(machine, config=GPTQ | {"torch_dtype": stored}, **options)
    assert types(composition) == IN_FLOAT32
    assert parts(composition) == ("native", "codes", "cpu")
    assert composition.weights == "codes (the checkpoint's own: gptq)"


def test_float32_is_the_way_back():
    composition = composed(dtype="float32")
    assert types(composition) == IN_FLOAT32
    assert parts(composition) == ("native", "bf16", "cpu")
    assert not composition.rounds_inputs
    assert composition.weights == "bf16 (auto: it is lossless for bfloat16 weights)"


@pytest.mark.parametrize("stored", ["float32", "float16"])
def test_other_checkpoints_are_computed_in_float32_with_their_own_weights(stored):
    composition = composed(config={"torch_dtype": stored})
    assert types(composition) == IN_FLOAT32
    assert parts(composition) == ("native", stored, "cpu")


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_bfloat16_that_is_asked_for_rounds_weights_as_well(stored):
    composition = composed(config={"torch_dtype": stored}, dtype="bfloat16")
    assert types(composition) == IN_BFLOAT16
    assert parts(composition) == ("native", "bf16", "cpu")
    assert composition.rounds_weights == (stored != "bfloat16")
    assert composition.weights.startswith("bf16 (auto: it is lossless for bfloat16 weights;")


def test_the_cache_keeps_the_dtype_that_it_was_given():
    assert types(composed(kv_cache_dtype="float32")) == ("bfloat16", "float32", "float32")
    assert types(composed(kv_cache_dtype="int8")) == ("bfloat16", "float32", "int8")


def test_a_processor_that_does_not_multiply_bfloat16_computes_in_float32():
    composition = composed(COMPILES)
    assert types(composition) == IN_FLOAT32
    assert parts(composition) == ("native", "bf16", "cpu")
    assert composition.dtype.reason == (
        "native kernels multiply bfloat16 weights in float32: the instruction set was not looked "
        "for"
    )


def test_there_bfloat16_that_is_asked_for_is_computed_by_torch():
    composition = composed(COMPILES, dtype="bfloat16")
    assert types(composition) == BY_TORCH
    assert parts(composition) == ("torch", None, "torch_sdpa")


@pytest.mark.parametrize(
    ("machine", "options"), [(NO_COMPILER, {}), (MULTIPLIES, {"kernels": "torch"})]
)
def test_without_kernels_torch_computes_in_bfloat16_if_the_processor_has_it(machine, options):
    assert types(composed(machine, **options)) == BY_TORCH
    old = replace(machine, cpu_flags=frozenset({"avx2"}))
    assert types(composed(old, **options)) == IN_FLOAT32


def test_a_gpu_computes_in_the_checkpoints_dtype_with_hidden_states_of_it():
    assert types(composed(GPU)) == BY_TORCH
    assert not composed(GPU).rounds_inputs
    assert types(composed(GPU, device="cpu")) == IN_BFLOAT16


@pytest.mark.parametrize("name", ["int8", "int4", "float32"])
def test_a_method_with_products_of_its_own_has_a_cache_in_bfloat16(name):
    for options in ({}, {"dtype": "bfloat16"}):
        composition = composed(quantization=name, **options)
        assert types(composition) == IN_BFLOAT16
        assert parts(composition) == ("native", name, "cpu")
        assert composition.weights == f"{name} (asked for)"
    assert types(composed(quantization=name, dtype="float32")) == IN_FLOAT32


@pytest.mark.parametrize("options", [{"kernels": "native"}, {"attention_backend": "cpu"}])
def test_a_named_part_of_native_kernels_computes_in_bfloat16(options):
    for wanted in ("auto", "bfloat16"):
        assert types(composed(dtype=wanted, **options)) == IN_BFLOAT16


def test_the_name_of_products_in_bfloat16_still_is_one():
    composition = composed(quantization="bf16_dot")
    assert types(composition) == IN_BFLOAT16
    assert parts(composition) == ("native", "bf16_dot", "cpu")
    assert composition.deprecation == (
        "quantization method 'bf16_dot' is deprecated and will be removed: --dtype bfloat16 "
        "multiplies as it does"
    )
    assert composed().deprecation is None
    assert composed(quantization="none").deprecation is None


def test_without_a_method_torch_multiplies_and_in_float32_unless_asked():
    composition = composed(quantization="none")
    assert types(composition) == IN_FLOAT32
    assert parts(composition) == ("native", None, "cpu")
    assert composition.dtype.reason.endswith(
        "with --quantization none torch computes linear layers"
    )
    composition = composed(quantization="none", dtype="bfloat16")
    assert types(composition) == BY_TORCH
    assert parts(composition) == ("torch", None, "torch_sdpa")
    with pytest.raises(RefusedError, match="none torch computes linear layers; use --dtype float3"):
        composed(quantization="none", dtype="bfloat16", kernels="native")


def test_where_products_do_not_compile_they_are_torchs_in_float32():
    def no_products(parts):
        return {name: "g++ failed" if "linear_library" in name else None for name in parts}

    composition = composed(probe=no_products)
    assert types(composition) == IN_FLOAT32
    assert composition.dtype.reason.endswith(
        "no quantization method multiplies it: auto: float32 represents all bfloat16 values; "
        "bf16: g++ failed"
    )
    assert parts(composition) == ("native", None, "cpu")
    assert types(composed(probe=no_products, dtype="bfloat16")) == BY_TORCH


@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_other_kernels_keep_the_dtype_that_they_had(kernels):
    interpreter = replace(MULTIPLIES, has_triton=True, interprets_kernels=True)
    named = {"attention_backend": "cpu"} if kernels == "torch" else {}
    assert types(composed(interpreter, kernels=kernels, **named)) == IN_FLOAT32


def test_a_method_of_another_plugin_is_given_float32(site):
    site.install("acme", acme(stored="'float32', 'bfloat16'"))
    for wanted in ("auto", "bfloat16"):
        composition = composed(quantization="acme", dtype=wanted)
        assert types(composition) == IN_BFLOAT16
        assert not composition.rounds_inputs
    assert parts(composed())[1] == "bf16", "it does not multiply in bfloat16"
    assert parts(composed(dtype="float32"))[1] == "acme", "the highest priority"


def test_a_method_of_another_plugin_may_multiply_in_bfloat16(site):
    stored = "'float32', 'bfloat16'"
    site.install("acme", acme(options="product_dtypes=frozenset({'bfloat16'})", stored=stored))
    composition = composed()
    assert parts(composition) == ("native", "acme", "acme")
    assert composition.rounds_inputs
    assert weight_bytes(composition, 1) > weight_bytes(composed(quantization="bf16"), 1)


def test_a_method_that_takes_hidden_states_in_bfloat16_has_torch_beside_it(site):
    site.install("acme", acme(method="'bfloat16'"))
    composition = composed(quantization="acme", dtype="bfloat16", attention_backend="torch_sdpa")
    assert types(composition) == BY_TORCH
    assert parts(composition) == ("torch", "acme", "torch_sdpa")
    with pytest.raises(RefusedError, match="float32 is not among bfloat16; set --dtype bfloat16"):
        composed(quantization="acme")


def test_a_cache_that_a_backend_cannot_store_decides_the_dtype(site):
    site.install("acme", acme())
    composition = composed(attention_backend="acme")
    assert types(composition) == IN_FLOAT32
    assert "KV dtype bfloat16 is not among float32" in composition.dtype.reason
    composition = composed(attention_backend="acme", kv_cache_dtype="float32")
    assert types(composition) == ("bfloat16", "float32", "float32")
    assert parts(composed()) == ("native", "bf16", "cpu"), "auto takes a backend that stores it"
