"""Whole models with packed weights equal float32 computation with the rounded weights."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from statistics import median
from typing import Any

import pytest
import torch
from format_reference import round_weight
from model_parts import CONTEXT, random_tokens
from native_libraries import BF16_SETS_HERE
from quantized_checkpoints import KINDS, CheckpointKind, write_quantized
from safetensors.torch import save_file

from quire.errors import SettingsError
from quire.layers import LMHead
from quire.layers.linear.linear_layers import ParallelLinear
from quire.machine.instruction_sets import VARIABLE, here
from quire.native.availability import native_unavailable_reason
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import bind_dense_attention, difference, logits_of
from quire.worker.loading.weight_loading import load_weights
from quire_models.decoder.decoder_model import DecoderForCausalLM
from quire_models.family_table import describe
from quire_quantizations import linear_library
from quire_quantizations.formats import BFLOAT16, BFLOAT16_DOT
from quire_quantizations.methods import BFloat16Products

METHODS = ("bf16", "float32", "int8_weight_only", "int4_weight_only")
INTEGERS = {"int8": "int8_weight_only", "int4": "int4_weight_only"}
SIZES = {"hidden_size": 96, "intermediate_size": 160}
REGISTRY = load_plugins().registries.quantizations

pytestmark = pytest.mark.skipif(
    native_unavailable_reason() is not None, reason=str(native_unavailable_reason())
)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def checkpoint(request, tmp_path):
    """A checkpoint in bfloat16."""
    written = write_checkpoint(
        tmp_path, "Qwen3ForCausalLM", tie_word_embeddings=request.param, **SIZES
    )
    weights = {name: tensor.bfloat16() for name, tensor in written.weights.items()}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return written


def model_of(checkpoint: Any, name: str | None, dtype: str | None = None) -> Any:
    quantization = None if name is None else REGISTRY.get(name).from_config({})
    if quantization is not None and dtype is not None:
        quantization = quantization.for_dtype(dtype)
    context = replace(CONTEXT, quantization=quantization)
    model = DecoderForCausalLM(describe(checkpoint.config), context)
    load_weights(model, checkpoint.folder)
    bind_dense_attention(model)
    return model


def keep_what_is_packed(model: Any, name: str) -> None:
    """Give a float32 model the numbers that a method keeps of its weights."""
    quantization = REGISTRY.get(name).from_config({})
    for path, module in model.named_modules():
        if isinstance(module, ParallelLinear | LMHead):
            weight = module.get_parameter("weight")
            weight.copy_(round_weight(quantization.linear_method(path).weight_format, weight))


@pytest.mark.parametrize("name", METHODS)
def test_a_model_computes_with_the_numbers_that_are_kept(checkpoint, name):
    """Within 1e-5 of the logits' spread: only the order of sums differs."""
    plain, packed = model_of(checkpoint, None), model_of(checkpoint, name)
    keep_what_is_packed(plain, name)
    tokens = random_tokens(40)
    assert difference(logits_of(packed, tokens), logits_of(plain, tokens)) < 1e-5


@pytest.mark.parametrize("name", ["bf16", "float32"])
def test_a_bfloat16_checkpoint_computes_like_transformers_in_float32(checkpoint, name):
    from transformers import AutoModelForCausalLM

    tokens = random_tokens(40)
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = theirs(tokens[None]).logits[0]
    assert difference(logits_of(model_of(checkpoint, name), tokens), expected) < 1e-5


def test_fewer_bits_are_further_away(checkpoint):
    """Eight bits miss a little, four bits more; in parts of the logits' spread, the worst logit."""
    tokens = random_tokens(40)
    plain = logits_of(model_of(checkpoint, None), tokens)
    misses = [difference(logits_of(model_of(checkpoint, n), tokens), plain) for n in METHODS]
    assert misses[0] < 1e-5 < misses[2] < 0.1
    assert misses[2] < misses[3] < 0.7


@pytest.mark.parametrize("name", INTEGERS)
def test_products_of_codes_are_about_as_close_as_the_weights_of_eight_bits(checkpoint, name):
    """The rounding of inputs adds about what int8 weights miss."""
    tokens = random_tokens(40)
    weight_only = logits_of(model_of(checkpoint, INTEGERS[name]), tokens)
    assert 1e-4 < difference(logits_of(model_of(checkpoint, name), tokens), weight_only) < 0.1


NEEDS_PAIRS = pytest.mark.skipif(
    not BF16_SETS_HERE or here().name not in BF16_SETS_HERE,
    reason="this processor has no products of pairs",
)


def round_inputs(model: Any) -> None:
    """Let a model round the inputs of all its products to bfloat16, and add up in float32."""
    for module in model.modules():
        if isinstance(module, ParallelLinear | LMHead):
            product = module.method.apply
            module.method.apply = partial(rounded_product, product)


def rounded_product(product: Any, layer: Any, x: torch.Tensor) -> torch.Tensor:
    return product(layer, x.bfloat16().float())


@NEEDS_PAIRS
def test_products_in_bfloat16_are_float32_products_of_rounded_inputs(checkpoint):
    """In most prompts: sums differ in the last bit, which few inputs are then rounded by."""
    model, simulated = model_of(checkpoint, "bf16", "bfloat16"), model_of(checkpoint, None)
    prompts = random_tokens(40).split(2)
    exact = [logits_of(simulated, prompt) for prompt in prompts]
    round_inputs(simulated)
    misses, errors = [], []
    for prompt, plain in zip(prompts, exact, strict=True):
        expected = logits_of(simulated, prompt)
        misses.append(difference(logits_of(model, prompt), expected))
        errors.append(difference(expected, plain))
    assert median(misses) < 1e-5
    assert max(misses) < max(errors)
    assert 1e-3 < median(errors) < 0.05


def codes_model(checkpoint: Any, folder: Path, kind: CheckpointKind, products: str) -> Any:
    """Return a model whose quantized checkpoint is kept in codes."""
    method = REGISTRY.get("codes_int8" if products == "int8" else "codes").from_config({})
    if products == "bfloat16":
        method = method.for_dtype("bfloat16")
    context = replace(CONTEXT, quantization=method)
    model = DecoderForCausalLM(describe(checkpoint.config), context)
    load_weights(model, folder, config=checkpoint.config, prepared=kind.reader())
    bind_dense_attention(model)
    return model


@pytest.mark.parametrize("kind", ["gptq", "gptq-8", "awq", "packed-zeros", "nf4"])
@pytest.mark.parametrize(
    ("products", "limit"),
    [
        ("float32", 1e-5),
        pytest.param("bfloat16", 0.05, marks=NEEDS_PAIRS),
        ("int8", 0.1),
    ],
)
def test_a_model_of_codes_computes_as_its_dequantized_weights_do(tmp_path, kind, products, limit):
    """In parts of the logits' spread, the worst logit; integers only where the codes are some."""
    written = write_checkpoint(tmp_path / "plain", "Qwen3ForCausalLM", **SIZES)
    folder = tmp_path / "quantized"
    write_quantized(written.folder, folder, KINDS[kind], lambda name: name.endswith("_proj.weight"))
    tokens = random_tokens(40)
    expected = logits_of(model_of(written, None), tokens)
    model = codes_model(written, folder, KINDS[kind], products)
    found = difference(logits_of(model, tokens), expected)
    is_exact = products == "float32" or (products, kind) == ("int8", "nf4")
    assert found < (1e-5 if is_exact else limit)
    assert is_exact or found > 1e-4


def test_a_checkpoint_that_was_made_for_integers_is_multiplied_as_such(tmp_path):
    """W8A8: without an option."""
    written = write_checkpoint(tmp_path / "plain", "Qwen3ForCausalLM", **SIZES)
    scheme = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
    }
    kind = replace(KINDS["int-quantized"], config={"config_groups": {"group_0": scheme}})
    folder = tmp_path / "quantized"
    write_quantized(written.folder, folder, kind, lambda name: name.endswith("_proj.weight"))
    model = codes_model(written, folder, kind, "float32")
    inputs = {
        path: module.method.weight_format.inputs
        for path, module in model.named_modules()
        if isinstance(module, ParallelLinear | LMHead)
    }
    assert {path for path, name in inputs.items() if name != "int8"} == {"lm_head"}
    tokens = random_tokens(40)
    expected = logits_of(model_of(written, None), tokens)
    assert 1e-4 < difference(logits_of(model, tokens), expected) < 0.1


@NEEDS_PAIRS
def test_the_deprecated_name_has_the_same_products(checkpoint):
    tokens = random_tokens(40)
    products = logits_of(model_of(checkpoint, "bf16", "bfloat16"), tokens)
    assert torch.equal(products, logits_of(model_of(checkpoint, "bf16_dot"), tokens))


def test_products_of_pairs_are_refused_without_the_instruction(monkeypatch):
    monkeypatch.setattr(linear_library, "cpu_flags", frozenset)
    probe = resolve_name(REGISTRY.entry("bf16_dot").capabilities.probe)
    assert "bf16 stores the same weights" in probe()


@NEEDS_PAIRS
def test_products_of_pairs_are_refused_in_kernels_for_less(monkeypatch):
    monkeypatch.setenv(VARIABLE, "avx2")
    probe = resolve_name(REGISTRY.entry("bf16_dot").capabilities.probe)
    assert probe().startswith("kernels for avx2 do not multiply bfloat16;")


@pytest.mark.parametrize("name", ["int8", "int4", "float32"])
def test_a_method_with_products_of_its_own_has_none_in_bfloat16(name):
    assert not REGISTRY.entry(name).capabilities.product_dtypes
    with pytest.raises(NotImplementedError, match="has no products in bfloat16"):
        REGISTRY.get(name).from_config({}).for_dtype("bfloat16")


@pytest.mark.parametrize("name", ["codes", "codes_int8"])
@pytest.mark.parametrize("may_round", [True, False])
def test_codes_in_bfloat16_round_other_weights_if_they_may(name, may_round):
    method = REGISTRY.get(name)(may_round)
    dense = method.linear_method("a").weight_format
    assert dense == BFLOAT16
    assert method.lossless().for_dtype("bfloat16").may_round is False
    variant = method.for_dtype("bfloat16")
    assert type(variant) is type(method)
    assert variant.may_round is may_round
    assert variant.linear_method("a").weight_format == BFLOAT16_DOT
    assert variant.lossless().linear_method("a").weight_format == BFLOAT16_DOT


@pytest.mark.parametrize("name", ["bf16", "bf16_dot"])
@pytest.mark.parametrize("may_round", [True, False])
def test_products_in_bfloat16_round_weights_as_the_method_does(name, may_round):
    method = REGISTRY.get(name)(may_round)
    assert REGISTRY.entry(name).capabilities.product_dtypes == {"bfloat16"}
    variant = method.for_dtype("bfloat16")
    assert isinstance(variant, BFloat16Products)
    assert variant.may_round is may_round
    assert variant.lossless().may_round is False
    assert isinstance(variant.lossless(), BFloat16Products)


def test_a_method_takes_no_options():
    with pytest.raises(SettingsError, match="Int4Products takes no options, got bits;"):
        REGISTRY.get("int4").from_config({"bits": 8})
    with pytest.raises(SettingsError, match="Int8Products takes no options, got bits, group"):
        REGISTRY.get("int8").from_config({"group": 3, "bits": 8})


@pytest.mark.parametrize("name", [*METHODS, *INTEGERS, "bf16_dot", "float16"])
def test_each_method_declares_what_it_keeps(name):
    capabilities = REGISTRY.entry(name).capabilities
    assert capabilities.from_plain_checkpoint
    assert capabilities.devices == {"cpu"}
    lossless = {
        "bf16": {"bfloat16"},
        "float16": {"float16"},
        "float32": {"float32", "float16"},
    }
    assert capabilities.lossless_for == lossless.get(name, frozenset())
    bits = {"bf16": (16, None), "float16": (16, None), "float32": (32, None)}
    bits |= {"bf16_dot": (16, None)}
    bits |= {"int8": (8.125, None), "int4": (4.5, 8.125)}
    found = (capabilities.weight_bits, capabilities.head_bits)
    assert found == bits[name.removesuffix("_weight_only")]
