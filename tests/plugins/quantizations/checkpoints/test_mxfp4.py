"""Mxfp4 experts are decoded as transformers does it, and to the shape of unquantized ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from model_parts import make_model
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import StoredTensor, unchanged
from quire.worker.loading.weight_loading import load_weights
from quire_quantizations.checkpoints.mxfp4 import MXFP4

BASE = "model.layers.0.mlp.experts.gate_up_proj"
READER = MXFP4.from_config({"quant_method": "mxfp4", "modules_to_not_convert": []})


def stored(name: str, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(name, Path("model.safetensors"), shape, "U8", 0)


def converted(tensors):
    return READER.read(unchanged(tensors), None)  # type: ignore[arg-type]


def decode_mxfp4(blocks, scales):
    """Return the matrices [E, K, rows], as an unquantized checkpoint has them."""
    names = {f"{BASE}_blocks": blocks.shape, f"{BASE}_scales": scales.shape}
    made = converted({name: stored(name, tuple(shape)) for name, shape in names.items()})[BASE]
    weights = [weight.dequantized() for weight in made.value(blocks, scales)]
    return torch.stack(weights).transpose(1, 2)


def random_blocks(num_experts=3, rows=5, num_blocks=2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (num_experts, rows, num_blocks)
    blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 140, shape, generator=generator, dtype=torch.uint8)
    return blocks, scales


def test_every_code_is_its_value_times_the_power_of_two():
    codes = torch.arange(16, dtype=torch.uint8)
    blocks = torch.cat((codes | (codes.flip(0) << 4),)).view(1, 1, 1, 16)
    found = decode_mxfp4(blocks, torch.tensor([[[126]]], dtype=torch.uint8))
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    table = torch.tensor([*values, *(-v for v in values)]) * 0.5
    assert torch.equal(found.flatten()[0::2], table)
    assert torch.equal(found.flatten()[1::2], table.flip(0))


def test_experts_are_decoded_as_transformers_does_it():
    blocks, scales = random_blocks()
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    found = decode_mxfp4(blocks, scales)
    assert found.shape == (3, 64, 5)
    assert torch.equal(found.bfloat16(), expected)


def test_blocks_and_scales_become_one_stack_of_experts():
    names = {
        f"{BASE}_blocks": (3, 5, 2, 16),
        f"{BASE}_scales": (3, 5, 2),
        f"{BASE}_bias": (3, 5),
        "model.norm.weight": (8,),
    }
    tensors = converted({name: stored(name, shape) for name, shape in names.items()})
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        BASE: (3, 5, 64),
        f"{BASE}_bias": (3, 5),
        "model.norm.weight": (8,),
    }
    assert [weight.shape for weight in tensors[BASE].value(*random_blocks())] == [(5, 64)] * 3


def test_blocks_without_scales_are_named():
    blocks = {f"{BASE}_blocks": stored(f"{BASE}_blocks", (3, 5, 2, 16))}
    with pytest.raises(CheckpointCorruptError, match=f"{BASE}_scales is missing"):
        converted(blocks)


@pytest.mark.parametrize(
    ("blocks", "scales"),
    [((3, 5, 2, 8), (3, 5, 2)), ((3, 5, 2, 16), (3, 5, 1)), ((5, 2, 16), (5, 2))],
    ids=str,
)
def test_shapes_that_do_not_fit_are_an_error_with_both(blocks, scales):
    tensors = {
        f"{BASE}_blocks": stored(f"{BASE}_blocks", blocks),
        f"{BASE}_scales": stored(f"{BASE}_scales", scales),
    }
    with pytest.raises(CheckpointCorruptError) as caught:
        converted(tensors)
    assert str(list(blocks)) in str(caught.value)
    assert str(list(scales)) in str(caught.value)


@pytest.mark.parametrize("part", ["blocks", "scales"])
@pytest.mark.parametrize("dtype", ["I8", "F32"])
def test_another_dtype_is_an_error_that_names_the_tensor(part, dtype):
    tensors = {
        f"{BASE}_blocks": stored(f"{BASE}_blocks", (3, 5, 2, 16)),
        f"{BASE}_scales": stored(f"{BASE}_scales", (3, 5, 2)),
    }
    tensors[f"{BASE}_{part}"] = replace(tensors[f"{BASE}_{part}"], dtype=dtype)
    with pytest.raises(
        CheckpointCorruptError, match=f"{BASE}_{part} in .* has the dtype {dtype}; mxfp4 needs U8"
    ):
        converted(tensors)


def test_scales_of_another_kind_are_left_alone():
    """A tensor is part of a pair by its blocks, not because its name ends in scales."""
    other = {"layer_scales": stored("layer_scales", (4,))}
    pair = {f"{BASE}_blocks": (3, 5, 2, 16), f"{BASE}_scales": (3, 5, 2)}
    tensors = other | {name: stored(name, shape) for name, shape in pair.items()}
    assert converted(tensors)["layer_scales"] == unchanged(other)["layer_scales"]


def test_gpt_oss_with_mxfp4_experts_is_the_same_model_as_decoded(tmp_path):
    family = next(iter(CASES["GptOssForCausalLM"].values()))
    written = write_family(tmp_path / "plain", family)
    plain = load_file(written.folder / "model.safetensors")
    packed = dict(plain)
    for name in [name for name in plain if name.endswith(("experts.gate_up_proj", "down_proj"))]:
        num_experts, columns, rows = plain[name].shape
        blocks, scales = random_blocks(num_experts, rows, columns // 32)
        plain[name] = decode_mxfp4(blocks, scales).contiguous()
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        del packed[name]
    save_file(plain, written.folder / "model.safetensors")
    (tmp_path / "packed").mkdir()
    save_file(packed, tmp_path / "packed" / "model.safetensors")
    expected, found = make_model(written.config), make_model(written.config)
    load_weights(expected, written.folder, config=written.config)
    load_weights(found, tmp_path / "packed", config=written.config, prepared=READER)
    pairs = zip(found.parameters(), expected.parameters(), strict=True)  # type: ignore[attr-defined]
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_scale_that_is_no_number_is_refused():
    blocks, scales = random_blocks()
    scales[1, 2, 0] = 255
    with pytest.raises(
        CheckpointCorruptError, match=f"{BASE}_scales in .* has scales that are NaN"
    ):
        decode_mxfp4(blocks, scales)
