"""Damaged quantized checkpoints load to the right weight or are refused with a tensor or a field.

Each tensor of a layer is left out, or gets another dtype, another shape or wrong values, and each
field of the config is left out or gets a wrong value.
"""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from model_parts import CONTEXT
from quantized_checkpoints import KINDS, act_order
from quantized_layers import awq, gptq, int_quantized, nf4, pack_quantized
from safetensors.torch import save_file
from torch import Tensor, nn

from quire.errors import QuireError
from quire.interfaces.model import Model
from quire.interfaces.weight_rules import WeightRule
from quire.layers import ReplicatedLinear
from quire.plugins.loading import load_plugins
from quire.worker.loading.weight_loading import load_weights

REGISTRY = load_plugins().registries.quantizations
OUTPUTS, INPUTS = 64, 96
STATE = "weight.quant_state.bitsandbytes__nf4"
DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.int32,
    torch.int8, torch.uint8,
)  # fmt: skip
VALUES = (None, "x", -5, 0, 3, 1.5, True, [], [7], {}, {"a": 1}, 10**12)


class OneLayer(nn.Module, Model):
    """A model with nothing but one linear layer, or experts that are one tensor of the checkpoint.

    Args:
        num_experts: Number of experts; None: a linear layer.
    """

    def __init__(self, num_experts: int | None) -> None:
        super().__init__()
        names = ["layer"] if num_experts is None else [f"experts.{i}" for i in range(num_experts)]
        self.layers = [linear(name) for name in names]
        if num_experts is None:
            self.layer = self.layers[0]
        else:
            self.experts = nn.ModuleList(self.layers)
            self.weight_rules = (WeightRule("layer", ("experts.{expert}",)),)

    def forward(self, *arguments: Any) -> Tensor:
        raise NotImplementedError

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        raise NotImplementedError


def linear(name: str) -> ReplicatedLinear:
    return ReplicatedLinear(name, INPUTS, OUTPUTS, bias=False, context=CONTEXT)


def float8(weight: Tensor) -> dict[str, Tensor]:
    scale = torch.tensor([[0.5, 1.0, 2.0], [4.0, 2.0, 1.0]])
    return {"weight": weight.to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def kinds() -> Iterator[tuple[str, tuple[dict[str, Any], dict[str, Tensor]]]]:
    """Yield the config and the tensors of a layer in each format."""
    weight = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(0))
    for name, kind in KINDS.items():
        yield name, (kind.config, kind.write(weight).tensors)
    options = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
    for packing, layer in (("auto_gptq", gptq(weight)), ("auto_awq", awq(weight))):
        config = options | {"packing_format": f"auto_round:{packing}", "data_type": "int"}
        yield f"round-{packing}", (config, layer.tensors)
    yield "act-order, one part", (KINDS["gptq-act-order"].config, act_order(weight).tensors)
    packed = pack_quantized(weight, 4, 16).tensors
    packed["weight_g_idx"] = (torch.arange(INPUTS) // 16).flip(0).int()
    ordered = with_option(KINDS["packed"].config, "actorder", "group")
    yield "packed-order", (ordered, packed)
    zeros = int_quantized(weight, symmetric=False).tensors
    yield "int-zeros", (with_option(KINDS["int-quantized"].config, "symmetric", False), zeros)
    yield "nf4-plain", (KINDS["nf4"].config, nf4(weight).tensors)
    yield "fp8", ({"quant_method": "fp8", "weight_block_size": [32, 32]}, float8(weight))
    one = {"weight": weight.to(torch.float8_e4m3fn), "weight_scale": torch.tensor(0.5)}
    yield "fp8-whole", ({"quant_method": "fp8"}, one)
    blocks = torch.arange(3 * OUTPUTS * INPUTS // 2).byte().view(3, OUTPUTS, INPUTS // 32, 16)
    experts = {"weight_blocks": blocks, "weight_scales": (blocks[..., 0] & 7) + 124}
    yield "mxfp4-experts", ({"quant_method": "mxfp4"}, experts)
    exponents = torch.full((OUTPUTS, INPUTS // 32), 127, dtype=torch.uint8)
    codes = torch.arange(OUTPUTS * INPUTS // 2).byte().view(OUTPUTS, -1)
    mx = {"weight_packed": codes, "weight_scale": exponents}
    yield "mxfp4", (compressed("mxfp4-pack-quantized", group_size=32), mx)
    nv = {"weight_packed": codes, "weight_scale": torch.ones(OUTPUTS, 6).to(torch.float8_e4m3fn),
          "weight_global_scale": torch.tensor([2.0])}  # fmt: skip
    yield "nvfp4", (compressed("nvfp4-pack-quantized", group_size=16), nv)


def compressed(layout: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", **weights}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"a": group}}


def with_option(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a config of compressed-tensors with another option of its weights."""
    changed = deepcopy(dict(config))
    next(iter(changed["config_groups"].values()))["weights"][key] = value
    return changed


def in_halves(end: str, tensor: Tensor) -> Tensor:
    """Return scales that every dtype of floats has exactly; other tensors stay."""
    if not tensor.is_floating_point() or end in ("weight", "weight.quant_map"):
        return tensor
    values = torch.tensor([0.5, 1.0, 2.0, 4.0])[torch.arange(tensor.numel()) % 4]
    return values.view(tensor.shape).to(tensor.dtype)


CASES = {
    name: (config, {end: in_halves(end, tensor) for end, tensor in tensors.items()})
    for name, (config, tensors) in kinds()
}


def loaded(folder, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
    """Write a checkpoint of one layer, and return its weight as it is loaded."""
    named = {f"layer.{end}": tensor.contiguous() for end, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    entry = REGISTRY.entry(config["quant_method"])
    prepared = REGISTRY.load(entry).from_config(config)
    model = OneLayer(3 if config["quant_method"] == "mxfp4" else None)
    load_weights(model, folder, config={"quantization_config": config}, prepared=prepared)
    return torch.stack([layer.get_parameter("weight") for layer in model.layers])


def refusal_of(folder, config, tensors, right: Tensor) -> str | None:
    """Return the error of a damaged checkpoint; None: it has loaded, to the right weight."""
    try:
        found = loaded(folder, config, tensors)
    except QuireError as error:
        return str(error)
    assert torch.equal(found, right), "it has loaded to another weight"
    return None


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    config, tensors = CASES[request.param]
    return tmp_path, config, tensors, loaded(tmp_path, config, tensors)


def test_a_tensor_that_is_left_out_is_named(case):
    folder, config, tensors, right = case
    for end in tensors:
        rest = {name: tensor for name, tensor in tensors.items() if name != end}
        refusal = refusal_of(folder, config, rest, right)
        assert refusal is None or f"layer.{end}" in refusal


def test_a_tensor_of_another_dtype_is_named(case):
    folder, config, tensors, right = case
    for end, tensor in tensors.items():
        for dtype in DTYPES:
            other = tensor.to(dtype)
            if not torch.equal(other.double(), tensor.double()):
                continue  # it stands for other values
            refusal = refusal_of(folder, config, tensors | {end: other}, right)
            assert refusal is None or f"layer.{end}" in refusal


def reshaped(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a tensor with another shape."""
    yield tensor.unsqueeze(0)
    yield tensor.flatten()
    yield tensor.new_empty(0)
    yield torch.stack((tensor, tensor))
    if tensor.dim():
        yield tensor[:-1]
        yield tensor[1:]
        yield tensor[:0]
        yield torch.cat((tensor, tensor))
        yield torch.cat((tensor, tensor[:1]))
    if tensor.dim() > 1:
        yield tensor.transpose(0, 1)
        yield tensor[..., :-1]
        yield tensor[..., :0]
        yield tensor[..., :1]
        yield torch.cat((tensor, tensor), -1)


def test_a_tensor_of_another_shape_is_named(case):
    folder, config, tensors, right = case
    for end, tensor in tensors.items():
        for other in reshaped(tensor):
            refusal = refusal_of(folder, config, tensors | {end: other.clone()}, right)
            assert refusal is None or "layer." in refusal


def test_scales_and_floats_that_are_no_numbers_are_named(case):
    folder, config, tensors, _ = case
    for end, tensor in tensors.items():
        if not tensor.is_floating_point() or end == "input_scale":
            continue
        for value in (torch.nan, torch.inf):
            wrong = tensor.float().clone()
            wrong.view(-1)[-1] = value
            wrong = wrong.to(tensor.dtype)
            if wrong.float().isfinite().all():
                continue  # e4m3 has no infinite numbers
            with pytest.raises(QuireError, match=rf"layer\.{end}"):
                loaded(folder, config, tensors | {end: wrong})


GROUPS = ("g_idx", "weight_g_idx")


def test_groups_that_do_not_exist_are_named(case):
    folder, config, tensors, _ = case
    for end in tensors.keys() & GROUPS:
        for value in (-2, -1, INPUTS, 2**31 - 1):
            wrong = tensors[end].clone()
            wrong[5] = value
            with pytest.raises(QuireError, match=rf"layer\.{end} in \S+ has groups from"):
                loaded(folder, config, tensors | {end: wrong})


@pytest.mark.parametrize(
    "sizes", [(0, 0), (-1, INPUTS), (OUTPUTS, -INPUTS), (2**40, 2**40), (1, 1)]
)
def test_a_shape_that_is_another_is_named(tmp_path, sizes):
    config, tensors = CASES["packed"]
    with pytest.raises(QuireError, match=r"layer\.weight_(shape|packed)"):
        loaded(tmp_path, config, tensors | {"weight_shape": torch.tensor(sizes)})


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": None}, {"shape": [64, 96, 1]}, {"shape": ["a", 1]}, {"shape": [-64, -96]},
        {"shape": [64, 2**70]}, {"blocksize": 0}, {"blocksize": -64}, {"blocksize": "x"},
        {"blocksize": 1e400}, {"nested_blocksize": 0}, {"nested_offset": 1e400},
        {"nested_offset": "x"}, {"nested_offset": None},
    ],
    ids=str,
)  # fmt: skip
def test_options_of_a_weight_that_are_wrong_are_named(tmp_path, changes):
    config, tensors = CASES["nf4"]
    state = json.loads(bytes(tensors[STATE].tolist())) | changes
    for text in (json.dumps(state), "[" * 10**5, "", "7", "null", '{"shape": 5'):
        content = torch.tensor(list(text.encode())).byte()
        with pytest.raises(QuireError, match=r"layer\.weight"):
            loaded(tmp_path, config, tensors | {STATE: content})


def changed_configs(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield configs in which one field is another or is left out, with its name."""
    for key in config:
        if key == "quant_method":
            continue
        yield key, {name: value for name, value in config.items() if name != key}
        for value in VALUES:
            yield key, {**config, key: value}
    for key in ("num_bits", "type", "strategy", "group_size", "block_structure", "symmetric",
                "actorder"):  # fmt: skip
        for value in VALUES if "config_groups" in config else ():
            yield key, with_option(config, key, value)


def test_a_field_of_the_config_that_is_wrong_is_named(case):
    folder, config, tensors, right = case
    for key, changed in changed_configs(config):
        refusal = refusal_of(folder, changed, tensors, right)
        assert refusal is None or key in refusal or "layer." in refusal


def test_tensors_that_are_not_quantized_contradict_the_config(case):
    folder, config, _, right = case
    plain = {"weight": right if len(right) > 1 else right[0]}
    with pytest.raises(QuireError, match=r"files is quantized as .*; correct its quan"):
        loaded(folder, config, plain)


def test_quantized_tensors_without_a_config_are_refused(case):
    folder, _, tensors, _ = case
    named = {f"layer.{end}": tensor.contiguous() for end, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    with pytest.raises(
        QuireError, match=r"layer\.weight.*quantization_config in config\.json names"
    ):
        load_weights(OneLayer(None), folder)
