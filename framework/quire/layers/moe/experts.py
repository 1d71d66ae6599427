"""Experts of a mixture: MLPs of which each token uses a few.

The rows of each expert are adjacent (`grouping`), and a product reads the weights only of those
experts that have rows. With native kernels and with Triton, the kernel reads which these are, never
Python, so a decode step can be captured.

With expert parallelism each device has whole experts, otherwise a shard of each. In both cases the
devices' outputs are summed.
"""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.quantization import GroupedProduct, LinearMethod
from quire.layers.context import LayerContext
from quire.layers.layer import Layer
from quire.layers.linear.linear_layers import linear_method
from quire.layers.moe.expert_linear import ExpertLinear, ExpertShape
from quire.layers.moe.grouping import GroupedRows, TorchGroupedRows
from quire.layers.moe.loop_product import LoopProduct
from quire.layers.moe.native_grouping import NativeGroupedRows
from quire.layers.moe.router import Routed
from quire.layers.moe.stacked_weight import StackedWeight, WeightStack
from quire.layers.parallel import shard
from quire.layers.partial_sums import summed

GATED, PLAIN, DOWN = "gate_up_proj", "up_proj", "down_proj"


class Expert(Layer):
    """One expert: `gate_up_proj` (or `up_proj`, without a gate) and `down_proj`."""

    def __init__(self, linears: dict[str, ExpertLinear]) -> None:
        super().__init__()
        for name, linear in linears.items():
            self.add_module(name, linear)


class Experts(Layer):
    """All experts of a layer.

    The checkpoint's tensors are those of `{name}.{expert}.gate_proj`, `up_proj` and `down_proj`; a
    model has `gate_up_name` in its `packed_modules`.

    Args:
        name: Module path in the model.
        num_experts: Number of experts.
        hidden_size: Number of inputs and outputs.
        intermediate_size: Width of an expert.
        activation: Activation between the products: `[S, 2 * width] -> [S, width]` with a gate,
            else `[S, width] -> [S, width]`.
        has_gate: Whether experts have a gate.
        bias: Whether the projections have biases.
        scales_input: Whether the routers' weights multiply the inputs.
        gate_up_name: Name of the linear layer that merges the gate and the up projection.
        context: Settings to build the layer with.
    """

    def __init__(
        self,
        name: str,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        activation: Layer,
        *,
        has_gate: bool = True,
        bias: bool = False,
        scales_input: bool = False,
        gate_up_name: str = GATED,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self.context = context
        self.scales_input = scales_input
        self.experts = own_experts(num_experts, context)
        first_name = gate_up_name if has_gate else PLAIN
        self.shapes = _shapes(first_name, hidden_size, intermediate_size, has_gate, bias, context)
        self._stacks = self._make_stacks()
        for expert in range(num_experts):
            self.add_module(str(expert), self._expert(f"{name}.{expert}", expert))
        self.activation = activation
        self.grouped_rows = _grouped_rows(self.experts, context)
        self.is_native = context.kernels == "native"
        self._products: tuple[GroupedProduct, GroupedProduct] | None = None

    def finish_loading(self) -> None:
        """Bind the native kernels, if layers run native kernels."""
        if self.is_native:
            self.grouped_rows = NativeGroupedRows(self.experts)

    def forward(self, x: Tensor, routed: Routed) -> Tensor:
        """Return the weighted sum of the outputs of each token's experts: `[T, hidden]`, both."""
        first, second = self._products or self._bind_products()
        rows, weights = self.grouped_rows, routed.weights
        before, after = (weights, None) if self.scales_input else (None, weights)
        grouping = rows.group(routed.experts)
        hidden = first(rows.gather(x, grouping, before), grouping.ends)
        outputs = second(self.activation(hidden), grouping.ends)
        return summed(rows.combine(outputs, grouping, after), self.context)

    def _make_stacks(self) -> dict[str, WeightStack]:
        """Return memory for unquantized weights by linear layer, for Triton kernels; else none."""
        if self.context.kernels != "triton" or self.context.quantization is not None:
            return {}
        return {
            linear: WeightStack(
                len(self.experts), shape.out_features, len(shape.columns), self.context
            )
            for linear, shape in self.shapes.items()
        }

    def _expert(self, name: str, expert: int) -> Expert:
        linears = {
            linear: ExpertLinear(shape, self._method(name, linear, expert), self.context)
            for linear, shape in self.shapes.items()
        }
        return Expert(linears)

    def _method(self, name: str, linear: str, expert: int) -> LinearMethod | None:
        """Return the storage of one expert's weight; None: another device has it."""
        if expert not in self.experts:
            return None
        if linear in self._stacks:
            return StackedWeight(self._stacks[linear], self.experts.index(expert))
        return linear_method(f"{name}.{linear}", self.context)

    def _bind_products(self) -> tuple[GroupedProduct, GroupedProduct]:
        """Return the two products, once all weights are loaded and packed."""
        first, second = (self._product(linear) for linear in self.shapes)
        self._products = (first, second)
        return first, second

    def _product(self, linear: str) -> GroupedProduct:
        modules = (self.get_submodule(f"{expert}.{linear}") for expert in self.experts)
        weights = [one.grouped() for one in modules if isinstance(one, ExpertLinear)]
        product = weights[0].method.grouped_product(weights)
        return product or LoopProduct(weights, self.shapes[linear].out_features)


def _grouped_rows(experts: range, context: LayerContext) -> GroupedRows:
    if context.kernels != "triton":
        return TorchGroupedRows(experts)
    from quire.layers.moe.triton_grouping import TritonGroupedRows  # loads Triton

    return TritonGroupedRows(experts)


def own_experts(num_experts: int, context: LayerContext) -> range:
    """Return the experts of this device: all of them, unless experts are divided over devices.

    Raises:
        SettingsError: The experts cannot be divided evenly.
    """
    if not context.expert_parallel:
        return range(num_experts)
    return shard("the number of experts", num_experts, context.tp)


def _shapes(
    first_name: str,
    hidden_size: int,
    width: int,
    has_gate: bool,
    bias: bool,
    context: LayerContext,
) -> dict[str, ExpertShape]:
    """Return the shapes of the two products by the name of their linear layers."""
    own = range(width)
    if not context.expert_parallel:
        own = shard("the width of an expert", width, context.tp)
    matrices = ("gate_proj", "up_proj") if has_gate else ("up_proj",)
    first = ExpertShape(
        parts=dict.fromkeys(matrices, width),
        rows=dict.fromkeys(matrices, own),
        num_columns=hidden_size,
        columns=range(hidden_size),
        has_bias=bias,
    )
    second = ExpertShape(
        parts={DOWN: hidden_size},
        rows={DOWN: range(hidden_size)},
        num_columns=width,
        columns=own,
        has_bias=bias,
        adds_bias=context.expert_parallel or context.tp.rank == 0,
    )
    return {first_name: first, DOWN: second}
