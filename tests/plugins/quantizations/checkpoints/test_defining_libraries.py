"""Layers that compressed-tensors and bitsandbytes have written are read as they dequantize them.

Run it where the libraries are installed: `pip install compressed-tensors bitsandbytes`.
"""

import pytest
import torch
from prepared_tensors import read_layer

from quire_quantizations.checkpoints.bitsandbytes import BitsAndBytes
from quire_quantizations.checkpoints.compressed_tensors import CompressedTensors

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
