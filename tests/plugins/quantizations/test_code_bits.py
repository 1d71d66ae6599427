"""The size of a quantized checkpoint's weights is known from its config, before anything loads."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from family_checkpoints import FamilyCase, write_family
from gguf_checkpoints import folder_as_gguf
from gguf_files import NUMBERS, Blocks
from quantized_checkpoints import CheckpointKind, write_quantized
from quantized_layers import (
    QuantizedLayer,
    awq,
    float_quantized,
    gptq,
    int_quantized,
    llm_int8,
    nf4,
    pack_quantized,
)
from quantized_weights import random_weight
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.compose.gguf.tensor_types import TYPES
from quire.config import Settings
from quire.interfaces.weight_codes import E2M1, E4M3, INTEGERS, NF4, WeightCodes
from quire.launch.composing import compose_engine
from quire.launch.estimate import estimate_memory
from quire.layers.parallel import SingleDevice
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.worker.loading.weight_loading import held_weight_bytes
from quire.worker.parts import WorkerParts
from quire.worker.worker import ModelWorker
from quire_quantizations.checkpoints.awq import AWQ
from quire_quantizations.checkpoints.bitsandbytes import BitsAndBytes
from quire_quantizations.checkpoints.block_fp8 import BlockFP8
from quire_quantizations.checkpoints.compressed_tensors import CompressedTensors
from quire_quantizations.checkpoints.configs.auto_round_config import (
    describe as describe_auto_round,
)
from quire_quantizations.checkpoints.configs.compressed_tensors_config import (
    describe as describe_compressed,
)
from quire_quantizations.checkpoints.configs.gptq_config import describe as describe_gptq
from quire_quantizations.checkpoints.gptq import GPTQ
from quire_quantizations.code_bits import bits_of_codes, bits_of_triton_codes
from quire_quantizations.triton.packed_codes import packed

SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1}
TOLERANCE = 0.02


def block_fp8(weight: Tensor, size: int = 128) -> QuantizedLayer:
    codes = weight.to(torch.float8_e4m3fn)
    scale = torch.ones([-(-count // size) for count in weight.shape])
    return QuantizedLayer({"weight": codes, "weight_scale_inv": scale}, codes.float())


def kinds():
    """Yield formats with the sizes of groups that checkpoints have."""
    for bits in (4, 8):
        for size in (32, 64, 128):
            for symmetric in (True, False):
                config = {"quant_method": "gptq", "bits": bits, "group_size": size}
                config["sym"] = symmetric
                write = partial(gptq, bits=bits, group_size=size, symmetric=symmetric)
                yield f"gptq-{bits}-{size}-{symmetric}", CheckpointKind(GPTQ, config, write)
    for size in (32, 64, 128):
        config = {"quant_method": "awq", "bits": 4, "group_size": size}
        yield f"awq-{size}", CheckpointKind(AWQ, config, partial(awq, group_size=size))
    for bits, size, symmetric in ((4, 32, True), (4, 128, True), (4, 128, False), (8, 128, True)):
        options = {"num_bits": bits, "group_size": size, "symmetric": symmetric}
        write = partial(pack_quantized, bits=bits, group_size=size, symmetric=symmetric)
        yield f"packed-{bits}-{size}-{symmetric}", of_groups("pack-quantized", write, **options)
    options = {"num_bits": 8, "strategy": "channel"}
    yield "int-quantized", of_groups("int-quantized", int_quantized, **options)
    yield "float-quantized", of_groups("float-quantized", float_quantized, type="float", **options)
    bnb = {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}
    yield "nf4", CheckpointKind(BitsAndBytes, bnb | {"load_in_4bit": True}, nf4)
    yield "llm-int8", CheckpointKind(BitsAndBytes, bnb | {"load_in_8bit": True}, llm_int8)
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    yield "fp8", CheckpointKind(BlockFP8, fp8, block_fp8)


def of_groups(layout: str, write: Any, **weights: Any) -> CheckpointKind:
    group = {"targets": ["Linear"], "weights": weights}
    config = {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"g": group}}
    return CheckpointKind(CompressedTensors, config | {"ignore": ["lm_head"]}, write)


def write(
    folder: Path, kind: CheckpointKind, dtype: str, ends: tuple[str, ...] = ("_proj.weight",)
) -> Path:
    """Write a checkpoint whose weights that are not quantized have the dtype of its config."""
    plain = write_checkpoint(folder / "plain", "Qwen3ForCausalLM", torch_dtype=dtype, **SIZES)
    write_quantized(plain.folder, folder / "m", kind, lambda name: name.endswith(ends))
    tensors = load_file(folder / "m" / "model.safetensors")
    for name in plain.weights.keys() & tensors.keys():
        if tensors[name].dtype == torch.float32:
            tensors[name] = tensors[name].to(getattr(torch, dtype))
    save_file(tensors, folder / "m" / "model.safetensors")
    return folder / "m"


def estimated_and_held(folder: Path, **options: Any) -> tuple[int, int]:
    """Return the bytes of the weights before and after they are loaded."""
    settings = Settings.from_options({"model": str(folder), **options})
    composed = compose_engine(settings, load_plugins(settings.plugins), is_plan=True)
    parts = WorkerParts.load(composed.settings, composed.composition, composed.plugins.registries)
    worker = ModelWorker(composed.settings, parts, SingleDevice())
    worker.load()
    assert worker._model is not None
    return estimate_memory(composed).weight_bytes, held_weight_bytes(worker._model)


KINDS = dict(kinds())


@NEEDS_COMPILER
@pytest.mark.parametrize("name", KINDS)
def test_the_estimate_is_the_size_that_loads(tmp_path, name):
    for dtype in ("bfloat16", "float16")[: 1 + (name == "nf4")]:
        folder = write(tmp_path / dtype, KINDS[name], dtype)
        estimated, held = estimated_and_held(folder)
        assert estimated == pytest.approx(held, rel=TOLERANCE)


@NEEDS_COMPILER
@pytest.mark.parametrize("name", ["gptq-4-128-True", "packed-4-128-True"])
def test_an_lm_head_that_is_quantized_counts_so(tmp_path, name):
    kind = KINDS[name]
    config = kind.config | ({"lm_head": True} if "gptq" in name else {"ignore": ["re:.*gate"]})
    folder = write(
        tmp_path, replace(kind, config=config), "bfloat16", ("_proj.weight", "lm_head.weight")
    )
    estimated, held = estimated_and_held(folder)
    assert estimated == pytest.approx(held, rel=TOLERANCE)


def parts(**options: Any) -> list[list[str]]:
    """Return the parts of a model that have the codes of each group of layers."""
    made = {
        name: {"targets": targets, "weights": {"num_bits": 4, "group_size": 32}}
        for name, targets in options.items()
        if name != "ignore"
    }
    config = {"config_groups": made, "ignore": options.get("ignore", [])}
    return [sorted(codes.parts) for codes in describe_compressed(config)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"a": ["Linear"]}, [["attention", "head", "mlp"]]),
        ({"a": ["Linear"], "ignore": ["lm_head"]}, [["attention", "mlp"]]),
        ({"a": ["Linear"], "ignore": ["re:.*head", "re:.*self_attn"]}, [["mlp"]]),
        ({"a": ["Linear"], "ignore": ["Linear"]}, [[]]),
        (
            {"a": ["Linear"], "ignore": ["re:.*gate$", "re:vision.*"]},
            [["attention", "head", "mlp"]],
        ),
        ({"a": ["Linear"], "b": ["re:.*self_attn.*"]}, [["head", "mlp"], ["attention"]]),
        ({"a": ["re:.*experts.*"], "b": ["re:.*self_attn.*"]}, [["mlp"], ["attention"]]),
        ({"a": ["re:.*down_proj"], "b": ["re:.*(q|up)_proj"]}, [["mlp"], ["attention", "mlp"]]),
        ({"a": ["re:language_model.*attn.*"], "b": ["re:lm_.*"]}, [["attention"], ["head"]]),
    ],
    ids=str,
)
def test_a_group_of_layers_is_for_the_parts_that_its_targets_name(options, expected):
    assert parts(**options) == expected


def test_dynamic_options_are_for_the_parts_that_their_patterns_name():
    config = {"bits": 4, "group_size": 128, "sym": True}
    assert describe_gptq(config) == (WeightCodes(INTEGERS, 4, 128),)
    attention, mlp = frozenset({"attention"}), frozenset({"mlp"})
    dynamic = {"+:.*down": {"bits": 8}, "-:.*gate$": {}, "+:.*self_attn": {"group_size": 64}}
    assert set(describe_gptq(config | {"dynamic": dynamic})) == {
        WeightCodes(INTEGERS, 4, 128, parts=mlp), WeightCodes(INTEGERS, 8, 128, parts=mlp),
        WeightCodes(INTEGERS, 4, 64, parts=attention),
    }  # fmt: skip
    excluded = config | {"dynamic": {"-:.*self_attn": {}}, "lm_head": True}
    (left,) = describe_gptq(excluded)
    assert left.parts == {"mlp", "head"}


@NEEDS_COMPILER
@pytest.mark.parametrize("name", ["gptq-4-128-True", "packed-4-128-True"])
def test_layers_that_the_config_excludes_count_as_they_are(tmp_path, name):
    kind, pattern = KINDS[name], ".*self_attn.*"
    options = {"ignore": ["lm_head", f"re:{pattern}"], "dynamic": {f"-:{pattern}": {}}}
    kind = replace(kind, config=kind.config | options)
    folder = write(
        tmp_path, kind, "bfloat16", ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    )
    estimated, held = estimated_and_held(folder)
    assert estimated == pytest.approx(held, rel=TOLERANCE)


@NEEDS_COMPILER
def test_experts_of_mxfp4_are_smaller_than_the_attention_beside_them(tmp_path):
    """Biases, which count as weights, are more of a tiny model than of a large one."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 64}
    case = FamilyCase("gpt_oss", sizes | experts | {"dtype": "bfloat16"})
    folder = write_family(tmp_path, case).folder
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.zeros(experts, outputs, inputs // 32, 16, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": blocks[..., 0].clone()}
    saved = {n: t.bfloat16() if t.is_floating_point() else t for n, t in tensors.items()}
    save_file(saved, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"quantization_config": {"quant_method": "mxfp4"}, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    estimated, held = estimated_and_held(folder)
    assert estimated == pytest.approx(held, rel=2 * TOLERANCE)


@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
def test_weights_that_are_dequantized_count_in_the_dtype_of_products(tmp_path, dtype, stored):
    config = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    kind = CheckpointKind(BlockFP8, config, partial(block_fp8, size=64))
    estimated, held = estimated_and_held(write(tmp_path, kind, stored), dtype=dtype)
    assert estimated == pytest.approx(held, rel=TOLERANCE)


MIXES = {  # types by parts of names in GGUF files; the first that is in a name is its type
    "Q4_0": {"": "Q4_0"},
    "Q8_0, head": {"": "Q8_0"},
    "Q4_K_M": {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K", "": "Q4_K"},
    "Q2_K, head": {"attn_v": "Q4_K", "output": "Q6_K", "ffn_down": "Q3_K", "": "Q2_K"},
    "MXFP4 and F16": {"attn": "F16", "token_embd": "F16", "": "MXFP4"},
    "F16 values": {"attn_v": "F16", "token_embd": "F16", "": "Q5_0"},
    "IQ4_XS, head": {"token_embd": "Q5_K", "output.": "F16", "": "IQ4_XS"},
}


def in_blocks(types: dict[str, str], name: str, tensor: Tensor) -> Any:
    """Return zeros of the type that a tensor's name has."""
    number = NUMBERS[next(kind for part, kind in types.items() if part in name)]
    kind, (rows, inputs) = TYPES[number], tensor.shape
    if kind.name == "F16":
        return tensor.half().numpy()
    row_bytes = inputs // kind.block_size * kind.block_bytes
    return Blocks(np.zeros((rows, row_bytes), np.uint8), number, (rows, inputs))


@NEEDS_COMPILER
@pytest.mark.parametrize("name", MIXES)
def test_the_estimate_of_a_gguf_file_is_that_of_its_types(tmp_path, name):
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    is_tied = "head" not in name
    folder = write_checkpoint(
        tmp_path / "plain", "Qwen3ForCausalLM", tie_word_embeddings=is_tied, **sizes
    ).folder
    file = folder_as_gguf(folder, tmp_path / "m.gguf", store=partial(in_blocks, MIXES[name]))
    estimated, held = estimated_and_held(file)
    assert estimated == pytest.approx(held, rel=TOLERANCE)


def test_options_of_autorounds_layers_are_for_their_parts():
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}
    attention, mlp = frozenset({"attention"}), frozenset({"mlp"})
    extra = {
        "model.layers.1.mlp.down_proj": {"bits": 8},
        "self_attn": {"bits": 16},  # the name of no layer
        r".*self_attn\.[qkv]_proj$": {"group_size": 64},
        "lm_head": {"bits": 4},
    }
    for packing in ("auto_gptq", "auto_awq"):
        own = config | {"packing_format": f"auto_round:{packing}"}
        has_zeros = packing == "auto_awq"
        codes = partial(WeightCodes, INTEGERS, has_offsets=has_zeros)
        assert describe_auto_round(own) == (codes(4, 128),)
        assert set(describe_auto_round(own | {"extra_config": extra})) == {
            codes(4, 128, parts=attention | mlp | {"head"}), codes(8, 128, parts=mlp),
            codes(4, 64, parts=attention),
        }  # fmt: skip
        plain = {".*self_attn.*": {"bits": 16, "data_type": "float"}}
        (left,) = describe_auto_round(own | {"extra_config": plain})
        assert left.parts == mlp


def test_a_weight_that_no_format_keeps_is_dequantized():
    for codes in (
        WeightCodes(INTEGERS, 4, 24), WeightCodes(E2M1, 4, 16), WeightCodes("fp4", 4, 64),
        WeightCodes(E4M3, 8, 64), WeightCodes("e5m2", 8, 128),
    ):  # fmt: skip
        assert bits_of_codes(codes, "bfloat16") is None
    assert bits_of_codes(WeightCodes(INTEGERS, 4, 16), "bfloat16") == 10
    assert bits_of_codes(WeightCodes(INTEGERS, 4, 16, has_offsets=True), "bfloat16") == 12


@pytest.mark.parametrize(
    ("table", "codes"),
    [
        ("int4", WeightCodes(INTEGERS, 4, 128)),
        ("uint4", WeightCodes(INTEGERS, 4, 32, has_offsets=True)),
        ("int8", WeightCodes(INTEGERS, 8, 64)),
        ("nf4", WeightCodes(NF4, 4, 64)),
        ("e4m3", WeightCodes(E4M3, 8, 128)),
        ("int4", WeightCodes(INTEGERS, 4)),
        ("int4", WeightCodes(INTEGERS, 4, 32, has_wide_scales=True)),
        ("uint4", WeightCodes(INTEGERS, 4, 32, has_offsets=True, has_wide_scales=True)),
    ],
)
def test_triton_kernels_take_the_estimated_bits(table, codes):
    inputs = 512
    zeros = "integers" if codes.has_offsets else "none"
    weight = random_weight(table, (128, inputs), codes.group_size or inputs, zeros=zeros)
    if codes.values in (NF4, E4M3) or codes.has_wide_scales:
        weight.scales.mul_(1.0001)  # in float32, as bitsandbytes, DeepSeek and GGUF files have them
    held = packed(weight, has_float8=False, largest_unit=64).tensors()
    num_bytes = sum(tensor.nbytes for tensor in held.values())
    estimated = bits_of_triton_codes(codes, "bfloat16")
    assert estimated == pytest.approx(8 * num_bytes / weight.codes.numel(), rel=0.04)
