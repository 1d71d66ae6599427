"""The plan of a checkpoint: fused, renamed and stacked tensors reach the layers of the model."""

from collections.abc import Mapping, Sequence

import pytest
import torch
from model_parts import CONTEXT
from safetensors.torch import save_file
from torch import Tensor, nn

from quire.errors import CheckpointCorruptError
from quire.interfaces.model import Model
from quire.interfaces.weight_rules import WeightRule
from quire.layers import QKVParallelLinear
from quire.worker.loading.weight_loading import init_dummy_weights, load_weights

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 5, 4, 2, 3
Q_ROWS, K_ROWS = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
PARTS = tuple(f"blocks.{{layer}}.{side}_proj" for side in "qkv")
NUM_EXPERTS, WIDTH = 3, 4


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.up = nn.Linear(HIDDEN, WIDTH, bias=False)


class Block(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            f"blocks.{index}.qkv_proj",
            HIDDEN,
            HEADS,
            KV_HEADS,
            HEAD_DIM,
            bias=True,
            context=CONTEXT,
        )
        self.experts = nn.ModuleList([Expert() for _ in range(NUM_EXPERTS)])


class Blocks(nn.Module, Model):
    packed_modules = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}  # noqa: RUF012

    def __init__(self, *rules: WeightRule) -> None:
        super().__init__()
        self.weight_rules = rules
        self.blocks = nn.ModuleList([Block(0), Block(1)])

    def forward(self, *args):
        raise NotImplementedError

    def compute_logits(self, hidden_states):
        raise NotImplementedError


def split_weights() -> dict[str, Tensor]:
    """Random weights by the model's names."""
    generator = torch.Generator().manual_seed(1)
    shapes: dict[str, tuple[int, ...]] = {}
    for block in ("blocks.0", "blocks.1"):
        for side, rows in zip("qkv", (Q_ROWS, K_ROWS, K_ROWS), strict=True):
            shapes[f"{block}.{side}_proj.weight"] = (rows, HIDDEN)
            shapes[f"{block}.{side}_proj.bias"] = (rows,)
        for expert in range(NUM_EXPERTS):
            for part in ("gate", "up"):
                shapes[f"{block}.experts.{expert}.{part}.weight"] = (WIDTH, HIDDEN)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def loaded(folder, weights: Mapping[str, Tensor], *rules: WeightRule) -> Blocks:
    save_file({name: t.contiguous() for name, t in weights.items()}, folder / "model.safetensors")
    model = Blocks(*rules)
    load_weights(model, folder)
    return model


def fused(
    weights: Mapping[str, Tensor], block: int, kind: str, groups: int, transposed: bool = False
) -> Tensor:
    parts = [weights[f"blocks.{block}.{side}_proj.{kind}"] for side in "qkv"]
    rows = torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)
    return rows.T if transposed and rows.dim() == 2 else rows


def fused_weights(groups: int, transposed: bool) -> dict[str, Tensor]:
    weights = split_weights()
    return {
        f"h.{block}.c_attn.{kind}": fused(weights, block, kind, groups, transposed)
        for block in (0, 1)
        for kind in ("weight", "bias")
    } | {name: tensor for name, tensor in weights.items() if "experts" in name}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, KV_HEADS])
def test_a_fused_checkpoint_gives_the_same_model(tmp_path, groups, transposed):
    expected = loaded(tmp_path, split_weights()).state_dict()
    rule = WeightRule("h.{layer}.c_attn", PARTS, groups, transposed)
    model = loaded(tmp_path, fused_weights(groups, transposed), rule)
    torch.testing.assert_close(dict(model.state_dict()), dict(expected), rtol=0, atol=0)


def stacks(weights: Mapping[str, Tensor], groups: int) -> dict[str, Tensor]:
    """Experts of each block as one tensor `[E, in, 2 * width]`."""
    out = {}
    for block in (0, 1):
        entries = []
        for expert in range(NUM_EXPERTS):
            gate, up = (
                weights[f"blocks.{block}.experts.{expert}.{part}.weight"] for part in ("gate", "up")
            )
            both = [part.unflatten(0, (groups, -1)) for part in (gate, up)]
            entries.append(torch.cat(both, 1).flatten(0, 1).T)
        out[f"blocks.{block}.experts.gate_up_proj"] = torch.stack(entries)
    return out


def expert_rule(groups: int) -> WeightRule:
    parts = tuple(f"blocks.{{layer}}.experts.{{expert}}.{part}.weight" for part in ("gate", "up"))
    return WeightRule("blocks.{layer}.experts.gate_up_proj", parts, groups, transposed=True)


def without_experts(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if "experts" not in name}


@pytest.mark.parametrize("groups", [1, WIDTH])
def test_one_stacked_tensor_reaches_all_experts(tmp_path, groups):
    weights = split_weights()
    expected = loaded(tmp_path, weights).state_dict()
    stacked = without_experts(weights) | stacks(weights, groups)
    model = loaded(tmp_path, stacked, expert_rule(groups))
    torch.testing.assert_close(dict(model.state_dict()), dict(expected), rtol=0, atol=0)


def test_a_checkpoint_with_the_names_of_the_model_needs_no_rule(tmp_path):
    rule = WeightRule("h.{layer}.c_attn", PARTS)
    model = loaded(tmp_path, split_weights(), rule, expert_rule(1))
    found = model.blocks[0].qkv_proj.weight[:Q_ROWS]
    assert torch.equal(found, split_weights()["blocks.0.q_proj.weight"])


def test_a_missing_fused_tensor_is_listed_once_by_its_own_name(tmp_path):
    weights = fused_weights(1, transposed=False)
    del weights["h.1.c_attn.weight"]
    with pytest.raises(
        CheckpointCorruptError, match=r"1 tensors are missing: h\.1\.c_attn\.weight$"
    ):
        loaded(tmp_path, weights, WeightRule("h.{layer}.c_attn", PARTS))


def test_a_missing_stack_is_listed_once(tmp_path):
    weights = without_experts(split_weights()) | stacks(split_weights(), 1)
    del weights["blocks.0.experts.gate_up_proj"]
    missing = r"1 tensors are missing: blocks\.0\.experts\.gate_up_proj$"
    with pytest.raises(CheckpointCorruptError, match=missing):
        loaded(tmp_path, weights, expert_rule(1))


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("h.0.c_attn.weight", (HIDDEN, 25), (HIDDEN, Q_ROWS + 2 * K_ROWS)),
        ("h.1.c_attn.bias", (23,), (Q_ROWS + 2 * K_ROWS,)),
    ],
)
def test_a_fused_tensor_of_a_wrong_shape_is_an_error_with_both_shapes(
    tmp_path, name, shape, wanted
):
    weights = {**fused_weights(1, transposed=True), name: torch.ones(shape)}
    with pytest.raises(CheckpointCorruptError) as caught:
        loaded(tmp_path, weights, WeightRule("h.{layer}.c_attn", PARTS, transposed=True))
    expected = f"has shape {list(shape)}, but config.json requires {list(wanted)}"
    assert f"tensor {name} in model.safetensors {expected}" in str(caught.value)


def test_a_stack_of_too_few_experts_is_an_error_with_both_shapes(tmp_path):
    weights = without_experts(split_weights()) | stacks(split_weights(), 1)
    name = "blocks.1.experts.gate_up_proj"
    weights[name] = weights[name][:2]
    with pytest.raises(CheckpointCorruptError, match=r"\[2, 5, 8\].*requires \[3, 5, 8\]"):
        loaded(tmp_path, weights, expert_rule(1))


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("h.7.c_attn.weight", "h.7.c_attn.weight"),
        ("h.0.c_attn.scale", "h.0.c_attn.scale"),
        ("h.0.other.weight", "h.0.other.weight"),
        ("blocks.5.experts.gate_up_proj", "blocks.5.experts.gate_up_proj"),
    ],
)
def test_unexpected_tensors_are_listed_by_the_names_of_the_checkpoint(tmp_path, name, listed):
    weights = fused_weights(1, transposed=False) | {name: torch.ones(2, 2)}
    rules = (WeightRule("h.{layer}.c_attn", PARTS), expert_rule(1))
    with pytest.raises(CheckpointCorruptError, match=f"1 tensors are not in the model: {listed}$"):
        loaded(tmp_path, weights, *rules)


def test_a_tensor_of_which_one_part_is_unknown_is_listed_with_the_part(tmp_path):
    parts = (*PARTS[:2], "blocks.{layer}.x_proj")
    weights = fused_weights(1, transposed=False)
    del weights["h.0.c_attn.bias"], weights["h.1.c_attn.weight"], weights["h.1.c_attn.bias"]
    reason = r"not in the model: h\.0\.c_attn\.weight \(there is no blocks\.0\.x_proj\.weight\)"
    with pytest.raises(CheckpointCorruptError, match=reason) as caught:
        loaded(tmp_path, weights, WeightRule("h.{layer}.c_attn", parts))
    assert str(caught.value).count("h.0.c_attn.weight") == 1, "it is not missing as well"


def test_a_part_that_two_tensors_have_is_refused(tmp_path):
    weights = fused_weights(1, transposed=False)
    weights["blocks.0.k_proj.weight"] = split_weights()["blocks.0.k_proj.weight"]
    with pytest.raises(CheckpointCorruptError, match=r"are both weight of one layer"):
        loaded(tmp_path, weights, WeightRule("h.{layer}.c_attn", PARTS))


def test_the_names_of_a_model_choose_before_its_rules(tmp_path):
    weights = {f"wrapped.{name}": t for name, t in fused_weights(1, transposed=False).items()}
    weights["wrapped.h.9.c_attn.weight"] = torch.ones(1)
    save_file({n: t.contiguous() for n, t in weights.items()}, tmp_path / "model.safetensors")
    model = Blocks(WeightRule("h.{layer}.c_attn", PARTS))
    model.map_weight_name = lambda name: (  # type: ignore[method-assign]
        None if ".9." in name else name.removeprefix("wrapped.")
    )
    load_weights(model, tmp_path)
    assert torch.equal(
        model.blocks[1].qkv_proj.bias[:Q_ROWS], split_weights()["blocks.1.q_proj.bias"]
    )


def names_of(model: Blocks, seed: int) -> Sequence[float]:
    init_dummy_weights(model, seed)
    return [float(parameter.detach().double().sum()) for parameter in model.parameters()]


def test_dummy_weights_do_not_depend_on_rules():
    plain = names_of(Blocks(), 3)
    assert names_of(Blocks(WeightRule("h.{layer}.c_attn", PARTS), expert_rule(1)), 3) == plain
    assert names_of(Blocks(), 4) != plain
