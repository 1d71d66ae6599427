"""Checkpoints that compressed-tensors and bitsandbytes have written are read as they read them.

Run it where the libraries are installed: `pip install compressed-tensors bitsandbytes`.
"""

import json
import random
from collections import OrderedDict

import pytest
import torch
from prepared_tensors import read_layer
from safetensors.torch import save_file
from torch import nn

from quire.errors import RefusedError
from quire.interfaces.checkpoint_tensors import unchanged
from quire.worker.loading.checkpoint_files import read_headers
from quire.worker.loading.tensor_reading import read_stored
from quire_quantizations.checkpoints.bitsandbytes import BitsAndBytes
from quire_quantizations.checkpoints.compressed_tensors import CompressedTensors
from quire_quantizations.checkpoints.configs.compressed_tensors_config import (
    CompressedTensorsConfig,
)

pytestmark = pytest.mark.slow


def weight() -> torch.Tensor:
    return torch.randn(96, 128, generator=torch.Generator().manual_seed(0))


def scheme(**options):
    quantization = pytest.importorskip("compressed_tensors.quantization")
    return quantization.QuantizationScheme(
        targets=["Linear"], weights=quantization.QuantizationArgs(**options)
    )


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
        ("pack-quantized", {"num_bits": 4, "strategy": "channel", "symmetric": False}),
        ("pack-quantized", {"num_bits": 8, "strategy": "group", "group_size": 64}),
        (
            "pack-quantized",
            {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
        ),
        ("pack-quantized", {"num_bits": 3, "strategy": "channel"}),
        ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
        ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
        ("float-quantized", {"num_bits": 8, "strategy": "channel", "type": "float"}),
        ("float-quantized", {"num_bits": 8, "strategy": "tensor", "type": "float"}),
        (
            "float-quantized",
            {"num_bits": 8, "strategy": "block", "type": "float", "block_structure": [32, 32]},
        ),
    ],
    ids=str,
)
def test_compressed_tensors(tmp_path, layout, options):
    compressors = pytest.importorskip("compressed_tensors.compressors")
    made = scheme(**options)
    compressor = compressors.BaseCompressor.get_value_from_registry(layout)
    symmetric = options.get("symmetric", True)
    size = options.get("group_size", 128)
    if options["strategy"] == "tensor":
        scale = torch.tensor([weight().abs().max() / 448])
    elif options["strategy"] == "block":
        blocks = weight().view(3, 32, 4, 32).abs().amax((1, 3))
        scale = blocks / 448
    else:
        largest = 448 if layout.startswith("float") else 2 ** (options["num_bits"] - 1) - 1
        scale = weight().view(96, -1, size).abs().amax(2) / largest
    state = {"weight": weight(), "weight_scale": scale}
    if not symmetric:
        generator = torch.Generator().manual_seed(1)
        state["weight_zero_point"] = torch.randint(-4, 4, scale.shape, generator=generator).char()
    written = compressor.compress(state, made)
    expected = compressor.decompress(dict(written), made)["weight"]
    config = {"config_groups": {"group_0": made.model_dump()}, "format": layout}
    written = {name: tensor.contiguous() for name, tensor in written.items()}
    found = read_layer(tmp_path, CompressedTensors.from_config(config), written)
    torch.testing.assert_close(found.dequantized(), expected.float(), rtol=1e-6, atol=1e-6)


TARGETS = (
    "Linear", "m.0.down_proj", "m.0.up_proj", "down_proj", "re:.*down_proj", "re:m.*",
    "re:down_proj", "re:.*0.*", "re:m.1.*", "re:^m.0", "re:.*_proj$",
)  # fmt: skip
LAYERS = ("m.0.down_proj", "m.1.down_proj", "m.0.up_proj", "m.10.gate", "lm_head")


def test_a_layer_has_the_scheme_that_compressed_tensors_gives_it():
    match = pytest.importorskip("compressed_tensors.utils.match")
    numbers, module = random.Random(0), nn.Linear(1, 1)
    for _ in range(300):
        targets = numbers.sample(TARGETS, numbers.randint(1, len(TARGETS)))
        names = [f"g{numbers.randint(0, 2)}" for _ in targets]
        by_target = OrderedDict(zip(targets, names, strict=True))
        groups = {
            name: {
                "targets": [target for target, own in by_target.items() if own == name],
                "weights": {"num_bits": 4},
            }
            for name in dict.fromkeys(names)
        }
        ours = CompressedTensorsConfig.read({"config_groups": groups})
        for layer in LAYERS:
            matched = match.match_targets(layer, module, by_target)
            if matched:
                first = ours.schemes_of(layer, is_float=False)[0]
                assert first.name == by_target[matched[0]], (layer, groups)


def test_presets_of_compressed_tensors_are_read_or_refused_by_name():
    quantization = pytest.importorskip("compressed_tensors.quantization")
    presets = pytest.importorskip("compressed_tensors.quantization.quant_scheme")
    for name in presets.PRESET_SCHEMES:
        preset = presets.preset_name_to_scheme(name, ["Linear"])
        made = quantization.QuantizationConfig(config_groups={"g": preset}, format="dense")
        config = json.loads(json.dumps(made.model_dump(mode="json")))
        if name.startswith("MXFP6"):
            with pytest.raises(RefusedError, match=r"num_bits in config\.json is 6"):
                CompressedTensorsConfig.read(config)
        else:
            CompressedTensorsConfig.read(config)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(128, 64, bias=False)
        self.k_proj = nn.Linear(128, 32, bias=False)
        self.up_proj = nn.Linear(128, 96, bias=False)
        self.down_proj = nn.Linear(96, 128, bias=False)
        self.gate = nn.Linear(128, 8, bias=False)


GROUPS = {
    "ints": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}},
    "bytes": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "strategy": "channel"}},
    "floats": {"targets": ["blocks.1.q_proj", "blocks.0.up_proj"], "weights": {
        "num_bits": 8, "type": "float", "strategy": "channel"}},
}  # fmt: skip


def test_a_model_of_several_groups_is_read_as_compressed_tensors_decompresses_it(tmp_path):
    quantization = pytest.importorskip("compressed_tensors.quantization")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    helpers = pytest.importorskip("compressed_tensors.quantization.utils")
    torch.manual_seed(0)
    model = nn.Module()
    model.blocks = nn.ModuleList([Block(), Block()])
    model.lm_head = nn.Linear(128, 320, bias=False)
    made = quantization.QuantizationConfig(
        config_groups=GROUPS, ignore=["lm_head", "re:.*gate"], quantization_status="frozen"
    )
    quantization.apply_quantization_config(model, made)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            size = scheme.weights.group_size or module.weight.shape[1]
            groups = module.weight.detach().view(len(module.weight), -1, size)
            scale, zero = helpers.calculate_qparams(groups.amin(2), groups.amax(2), scheme.weights)
            module.weight_scale.data.copy_(scale)
            if not scheme.weights.symmetric:
                module.weight_zero_point.data.copy_(zero)
    compressor = compressors.ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    config = json.loads(json.dumps(compressor.quantization_config.model_dump(mode="json")))
    file = tmp_path / "model.safetensors"
    save_file({name: part.contiguous() for name, part in model.state_dict().items()}, file)
    found = CompressedTensors.from_config(config).read(unchanged(read_headers([file])), read_stored)
    compressor.decompress_model(model)
    weights = {name: one for name, one in model.state_dict().items() if name.endswith(".weight")}
    assert found.keys() == weights.keys()
    for name, expected in weights.items():
        value = found[name].value(*map(read_stored, found[name].stored))
        value = value if isinstance(value, torch.Tensor) else value.dequantized()
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_bitsandbytes_with_4_bits(tmp_path, quant_type, nested):
    functional = pytest.importorskip("bitsandbytes.functional")
    packed, state = functional.quantize_4bit(
        weight(), quant_type=quant_type, compress_statistics=nested, blocksize=64
    )
    expected = functional.dequantize_4bit(packed, state)
    tensors = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    reader = BitsAndBytes.from_config({"load_in_4bit": True})
    found = read_layer(tmp_path, reader, {"weight": packed, **tensors}).dequantized()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_bitsandbytes_with_8_bits(tmp_path):
    functional = pytest.importorskip("bitsandbytes.functional")
    codes, scales, _ = functional.int8_vectorwise_quant(weight().half())
    expected = functional.int8_vectorwise_dequant(codes, scales)
    tensors = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0).byte()}
    found = read_layer(tmp_path, BitsAndBytes.from_config({"load_in_8bit": True}), tensors)
    torch.testing.assert_close(found.dequantized(), expected.float(), rtol=1e-6, atol=1e-6)
