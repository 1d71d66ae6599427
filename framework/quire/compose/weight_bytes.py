"""Estimate of the bytes of a model's weights, from its description and quantization method."""

from quire.compose.composition import Composition
from quire.interfaces.kv_cache import DTYPE_BYTES
from quire.interfaces.quantization import QuantizationCapabilities

BITS = 8


def weight_bytes(composition: Composition, tp_size: int) -> int:
    """Return the bytes of a model's weights on one device.

    With a quantization method, the embedding counts in the checkpoint's dtype. Other weights
    outside linear layers are small and count as linear layers.
    """
    description = composition.description
    if (choice := composition.quantization.value) is None:
        return description.num_params // tp_size * DTYPE_BYTES[composition.dtype.value]
    method: QuantizationCapabilities = choice.entry.capabilities
    own_bits = BITS * DTYPE_BYTES[composition.dtype.value]
    bits = own_bits if method.weight_bits is None else method.weight_bits
    head_bits = bits if method.head_bits is None else method.head_bits
    head = description.vocab_size * description.hidden_size
    embedding = 0 if description.has_tied_head else head
    linear = max(0, description.num_params - head - embedding)
    embedding_bits = BITS * DTYPE_BYTES.get(description.checkpoint_dtype, own_bits // BITS)
    num_bits = linear * bits + head * head_bits + embedding * embedding_bits
    return round(num_bits / BITS) // tp_size
