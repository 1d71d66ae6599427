"""Estimate of the bytes of a model's weights on each rank, from its description and quantization.

All decoder layers count alike. With a quantization method, the embedding and other tables by token
id count in the checkpoint's dtype. Other weights outside linear layers are small and count as
linear layers. Of a quantized checkpoint, all layers of a part (attention, MLP, head) count as those
with the largest codes, unless the shares of its codes are known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.compose.composition import Composition
from quire.interfaces.kv_cache import DTYPE_BYTES, KVSpecCapabilities
from quire.interfaces.quantization import QuantizationCapabilities
from quire.interfaces.weight_codes import ATTENTION, EMBEDDING, HEAD, MLP, WeightCodes
from quire.plugins.registry import Entry, import_reference

BITS = 8
KV_PROJECTIONS = 2  # of keys and of values
QUERY_PROJECTIONS = 2  # of queries and of outputs


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of the parts of a model on one tensor-parallel rank.

    Attributes:
        num_layers: Number of decoder layers.
        layer: Bytes of one decoder layer.
        embedding: Bytes of the embedding, which the first stage has.
        tables: Bytes of other tables by token id, which the first stage has.
        head: Bytes of the LM head and the norm before it, which the last stage has.
        has_tied_head: Whether the head is the embedding; a stage that has both stores one matrix.
    """

    num_layers: int
    layer: int
    embedding: int
    tables: int
    head: int
    has_tied_head: bool

    def bytes_of(self, layers: range) -> int:
        """Return the bytes of the pipeline stage with these decoder layers."""
        is_first, is_last = layers.start == 0, layers.stop == self.num_layers
        has_embedding = is_first and not (is_last and self.has_tied_head)
        first = has_embedding * self.embedding + is_first * self.tables
        return len(layers) * self.layer + first + is_last * self.head


def weight_bytes(composition: Composition, tp_size: int, stage: int = 0) -> int:
    """Return the bytes of the weights on one rank of a pipeline stage."""
    return weight_sizes(composition, tp_size).bytes_of(composition.stage_layers[stage])


def weight_sizes(composition: Composition, tp_size: int) -> WeightSizes:
    """Return the bytes of the parts of a model on one of `tp_size` tensor-parallel ranks."""
    description, bits = composition.description, _weight_bits(composition)
    num_matrices = 1 if description.has_tied_head else 2
    vocabulary = num_matrices * description.vocab_size * description.hidden_size
    tables = description.num_table_params
    inside = max(0, description.num_params - vocabulary - tables - description.hidden_size)
    inside += _replicated_params(composition, tp_size)
    attention = min(inside, _attention_params(composition))
    inside_bits = (inside - attention) * bits.linear + attention * bits.attention
    num_layers = max(1, description.num_layers)
    matrix = -(-description.vocab_size // tp_size) * description.hidden_size
    return WeightSizes(
        num_layers=num_layers,
        layer=round(inside_bits / (BITS * num_layers * tp_size)),
        embedding=round(matrix * bits.embedding / BITS),
        tables=-(-tables // tp_size) * bits.tables // BITS,
        head=round((matrix * bits.head + description.hidden_size * bits.linear) / BITS),
        has_tied_head=description.has_tied_head,
    )


@dataclass(frozen=True, slots=True)
class _WeightBits:
    """Bits of a weight of each part.

    Attributes:
        linear: Of linear layers.
        head: Of the LM head.
        embedding: Of the embedding.
        tables: Of other tables by token id.
        attention: Of the projections of attention.
    """

    linear: float
    head: float
    embedding: float
    tables: int
    attention: float


def _weight_bits(composition: Composition) -> _WeightBits:
    own = BITS * DTYPE_BYTES[composition.hidden_dtype]
    if (choice := composition.quantization.value) is None:
        return _WeightBits(own, own, own, own, own)
    method: QuantizationCapabilities = choice.entry.capabilities
    linear = own if method.weight_bits is None else method.weight_bits
    head = linear if method.head_bits is None else method.head_bits
    tables = min(own, BITS * DTYPE_BYTES.get(composition.description.checkpoint_dtype, own))
    if method.bits_of_codes is None:
        return _WeightBits(linear, head, tables, tables, linear)
    bits_of = _bits_of_codes(choice.entry, method.bits_of_codes)
    dtype, codes = composition.description.checkpoint_dtype, composition.checkpoint_codes
    is_rounded = composition.rounds_inputs  # and dense weights with them
    dense = BITS * DTYPE_BYTES[composition.dtype.value] if is_rounded else own
    ordinary = min(bits_of(None, dtype) or dense, dense)
    if codes is None:
        return _WeightBits(linear, ordinary, tables, tables, linear)

    def of_part(part: str, plain: float = ordinary) -> float:
        sizes = [(each, bits_of(each, dtype) or dense) for each in codes if part in each.parts]
        return _mean_or_largest(sizes, plain)

    is_tied = composition.description.has_tied_head
    return _WeightBits(
        of_part(MLP),
        of_part(EMBEDDING if is_tied else HEAD),
        of_part(EMBEDDING, tables),
        tables,
        of_part(ATTENTION),
    )


def _mean_or_largest(sizes: Sequence[tuple[WeightCodes, float]], plain: float) -> float:
    """Return the bits of a part's weights on average, or the largest if shares are not known.

    Args:
        sizes: Codes of the part, each with the bits of a weight.
        plain: Bits of a weight without codes.
    """
    shares = [(codes.share, bits) for codes, bits in sizes if codes.share is not None]
    if len(shares) < len(sizes) or not sizes:
        return max((bits for _, bits in sizes), default=plain)
    return plain + sum(share * (bits - plain) for share, bits in shares)


def _bits_of_codes(entry: Entry, reference: str) -> Callable[..., float | None]:
    what = f"the bits of codes of quantization method {entry.name!r} of {entry.source}"
    return import_reference(reference, what)  # type: ignore[return-value]


def _attention_params(composition: Composition) -> int:
    """Return the number of parameters of the projections of attention, without biases.

    Latent attention, whose keys and values have other projections, counts as none.
    """
    layouts, description = _layouts(composition), composition.description
    hidden, heads = description.hidden_size, description.num_heads
    return sum(
        hidden * layer.head_dim * (QUERY_PROJECTIONS * heads + KV_PROJECTIONS * layer.num_kv_heads)
        for layer in description.kv_layers
        if layouts[layer.spec] == "kv"
    )


def _replicated_params(composition: Composition, tp_size: int) -> int:
    """Return the parameters that ranks have beyond a shard of each layer, over all ranks.

    With fewer key/value heads than ranks, each head's projections are on several ranks.
    """
    layouts = _layouts(composition)
    hidden = composition.description.hidden_size
    return sum(
        KV_PROJECTIONS * layer.head_dim * hidden * max(0, tp_size - layer.num_kv_heads)
        for layer in composition.description.kv_layers
        if layouts[layer.spec] == "kv"
    )


def _layouts(composition: Composition) -> dict[str, str]:
    """Return the layout of each KV-cache spec."""
    return {
        choice.name: _layout(choice.entry.capabilities) for choice in composition.kv_cache_specs
    }


def _layout(capabilities: KVSpecCapabilities) -> str:
    return capabilities.layout
