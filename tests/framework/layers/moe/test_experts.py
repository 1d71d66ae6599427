"""Experts: loading by names, shards of several devices, biases, quantization, batch invariance."""

from dataclasses import replace

import pytest
import torch
from format_reference import round_weight
from model_parts import CONTEXT
from moe_parts import (
    HIDDEN,
    STEP,
    MoEModel,
    by_formula,
    hidden_states,
    load,
    make_moe,
    random_tensors,
)
from torch import Tensor

from quire.errors import CheckpointCorruptError, SettingsError
from quire.layers import LayerContext, MoE, Routing, TensorParallelGroup
from quire.layers.linear.row_tiles import same_bits
from quire.native.tracing import trace_calls
from quire.testing.model.threaded_ranks import RankThreads
from quire.worker.graphs.cpu_graph_memory import GraphAllocator, GraphMemory, TracingMode
from quire.worker.loading.weight_loading import held_weight_bytes, weight_targets
from quire_quantizations.methods import (
    BFloat16Weights,
    Float32Weights,
    Int4Weights,
    Int8Weights,
)


class OneOf(TensorParallelGroup):
    """A rank without peers: results are this device's own part."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return x


ROUTING = Routing(num_experts=6, top_k=2, renormalize=True)
X = hidden_states(9)


def expected(moe: MoE, tensors: dict[str, Tensor], x: Tensor = X) -> Tensor:
    routed = moe.gate(x)
    return by_formula(tensors, x, routed.experts, routed.weights).float()


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize("bias", [False, True])
def test_outputs_are_the_weighted_sum_of_the_chosen_experts(bias, kernels, tmp_path):
    moe = make_moe(ROUTING, replace(CONTEXT, kernels=kernels), bias=bias)
    tensors = random_tensors(moe)
    load(moe, tensors, tmp_path)
    torch.testing.assert_close(moe(X, STEP), expected(moe, tensors))


def test_no_tokens_give_no_outputs(tmp_path):
    moe = make_moe(ROUTING)
    load(moe, random_tensors(moe), tmp_path)
    assert moe(torch.empty(0, HIDDEN), STEP).shape == (0, HIDDEN)


def test_the_checkpoint_has_the_tensors_of_each_expert():
    names = weight_targets(MoEModel(make_moe(ROUTING, bias=True)))
    assert "mlp.gate.weight" in names
    assert names["mlp.experts.5.up_proj.weight"].shape == (12, HIDDEN)
    assert names["mlp.experts.5.up_proj.bias"].shape == (12,)
    assert names["mlp.experts.0.down_proj.weight"].shape == (HIDDEN, 12)
    assert len(names) == 1 + 6 * 6


def test_a_missing_expert_is_named(tmp_path):
    moe = make_moe(ROUTING)
    tensors = random_tensors(moe)
    del tensors["mlp.experts.4.down_proj.weight"]
    with pytest.raises(CheckpointCorruptError, match=r"mlp\.experts\.4\.down_proj\.weight"):
        load(moe, tensors, tmp_path)


def sharded(
    tmp_path, context: LayerContext, x: Tensor, size: int, bias: bool
) -> tuple[list[Tensor], list[MoE]]:
    """Return the outputs of each rank, and its layer; the ranks load one checkpoint."""
    tensors = random_tensors(make_moe(ROUTING, bias=bias))
    ranks = RankThreads(size, 1)
    layers = [make_moe(ROUTING, replace(context, tp=group), bias=bias) for group in ranks.groups]
    for layer in layers:
        load(layer, tensors, tmp_path)
    try:
        return ranks.run([lambda layer=layer: layer(x, STEP) for layer in layers]), layers
    finally:
        ranks.close()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("expert_parallel", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_devices_together_give_the_outputs_of_one(
    size, expert_parallel, batch_invariant, bias, tmp_path
):
    context = replace(CONTEXT, expert_parallel=expert_parallel, batch_invariant=batch_invariant)
    whole = make_moe(ROUTING, bias=bias)
    load(whole, random_tensors(whole), tmp_path)
    outputs, _ = sharded(tmp_path, context, X, size, bias)
    for output in outputs:
        torch.testing.assert_close(output, whole(X, STEP))
        assert same_bits(output, outputs[0])


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # in undefined rows
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_devices_with_kernels_have_partial_sums_of_the_outputs(expert_parallel, tmp_path):
    """One after another, because Triton's interpreter runs in one thread."""
    whole = make_moe(ROUTING, bias=True)
    tensors = random_tensors(whole)
    load(whole, tensors, tmp_path)
    total = torch.zeros_like(X)
    for rank in range(2):
        context = replace(
            CONTEXT, kernels="triton", tp=OneOf(rank, 2), expert_parallel=expert_parallel
        )
        total += load(make_moe(ROUTING, context, bias=True), tensors, tmp_path)(X, STEP)
    torch.testing.assert_close(total, whole(X, STEP))


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_each_device_has_its_part_of_the_memory(expert_parallel, tmp_path):
    context = replace(CONTEXT, expert_parallel=expert_parallel)
    _, layers = sharded(tmp_path, context, X, 2, False)
    router_bytes = 6 * HIDDEN * 4
    expert_bytes = 6 * 3 * 12 * HIDDEN * 4
    for layer in layers:
        assert held_weight_bytes(MoEModel(layer)) == router_bytes + expert_bytes // 2


@pytest.mark.parametrize(
    ("expert_parallel", "message"),
    [(False, r"the width of an expert \(12\)"), (True, r"the number of experts \(6\)")],
)
def test_what_cannot_be_divided_is_named(expert_parallel, message):
    group = RankThreads(5, 1).groups[0]
    with pytest.raises(SettingsError, match=message):
        make_moe(ROUTING, replace(CONTEXT, tp=group, expert_parallel=expert_parallel))


def test_batch_invariant_rows_have_the_same_bits_alone(tmp_path):
    moe = make_moe(ROUTING, replace(CONTEXT, batch_invariant=True), hidden=64, width=48)
    load(moe, random_tensors(moe), tmp_path)
    x = hidden_states(40, 64)
    together = moe(x, STEP)
    for row in range(0, 40, 7):
        assert same_bits(moe(x[row : row + 1], STEP)[0], together[row])


METHODS = {
    "bf16": BFloat16Weights,
    "float32": Float32Weights,
    "int8": Int8Weights,
    "int4": Int4Weights,
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_quantized_experts_multiply_what_their_method_keeps(name, bias, tmp_path):
    method = METHODS[name]
    native = replace(CONTEXT, kernels="native", quantization=method.from_config({}))
    moe = make_moe(ROUTING, native, hidden=128, width=64, bias=bias)
    tensors = random_tensors(moe)
    load(moe, tensors, tmp_path)
    kept = {
        key: round_weight(method.weight_format, tensor)
        if key.endswith("weight") and "experts" in key
        else tensor
        for key, tensor in tensors.items()
    }
    x = hidden_states(9, 128)
    torch.testing.assert_close(moe(x, STEP), expected(moe, kept, x), rtol=1e-4, atol=1e-4)
    one_by_one = replace(native, kernels="torch")
    loop = load(make_moe(ROUTING, one_by_one, hidden=128, width=64, bias=bias), tensors, tmp_path)
    torch.testing.assert_close(moe(x, STEP), loop(x, STEP), rtol=1e-4, atol=1e-4)


def test_narrow_and_wide_experts_are_multiplied_one_after_another(tmp_path):
    quantization = BFloat16Weights.from_config({}).lossless()
    moe = make_moe(ROUTING, replace(CONTEXT, kernels="native", quantization=quantization))
    tensors = random_tensors(moe)
    for expert in range(3):
        for part in ("gate", "up", "down"):
            key = f"mlp.experts.{expert}.{part}_proj.weight"
            tensors[key] = tensors[key].bfloat16()
    load(moe, tensors, tmp_path)
    torch.testing.assert_close(moe(X, STEP), expected(moe, tensors))


@pytest.mark.parametrize("name", METHODS)
def test_batch_invariant_rows_of_native_kernels_have_the_same_bits_alone(name, tmp_path):
    quantization = METHODS[name].from_config({})
    context = replace(CONTEXT, kernels="native", batch_invariant=True, quantization=quantization)
    moe = make_moe(ROUTING, context, hidden=128, width=64)
    load(moe, random_tensors(moe), tmp_path)
    x = hidden_states(40, 128)
    with trace_calls() as calls, TracingMode(GraphAllocator(GraphMemory()), calls):
        together = moe(x, STEP)
    assert calls.reason is None
    calls.replay()
    for row in range(0, 40, 7):
        assert same_bits(moe(x[row : row + 1], STEP)[0], together[row])


@pytest.mark.parametrize("num_tokens", [1, 3, 8])
def test_a_replayed_step_uses_the_experts_of_its_own_tokens(num_tokens, tmp_path):
    quantization = Int8Weights.from_config({})
    context = replace(CONTEXT, kernels="native", quantization=quantization)
    moe = make_moe(ROUTING, context)
    load(moe, random_tensors(moe), tmp_path)
    x = hidden_states(num_tokens)
    with trace_calls() as calls, TracingMode(GraphAllocator(GraphMemory()), calls):
        out = moe(x, STEP)
    assert calls.reason is None
    other = hidden_states(num_tokens, seed=7)
    x.copy_(other)
    calls.replay()
    assert moe.gate(other).experts.tolist() != moe.gate(hidden_states(num_tokens)).experts.tolist()
    assert same_bits(out, moe(other, STEP))
