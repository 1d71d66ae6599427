"""The table of contents of this plugin. Imports nothing heavy."""

from quire import hookimpl
from quire.interfaces.quantization import Quantization, QuantizationCapabilities
from quire.registry import Registrar

CPU = frozenset({"cpu"})
FLOAT32 = frozenset({"float32"})
NATIVE = frozenset({"native"})


@hookimpl
def register_quantizations(registry: Registrar[type[Quantization]]) -> None:
    """Offer the quantization methods below."""
    registry.add(
        "bf16",
        "quire_quantizations.methods:BFloat16Weights",
        capabilities=QuantizationCapabilities(
            devices=CPU,
            dtypes=FLOAT32,
            from_plain_checkpoint=True,
            reads_prepared=False,
            lossless_for=frozenset({"bfloat16"}),
            kernels=NATIVE,  # without them, float32 weights multiply as fast as there is
            weight_bits=16,
            priority=20,
        ),
    )
    registry.add(
        "float32",
        "quire_quantizations.methods:Float32Weights",
        capabilities=QuantizationCapabilities(
            devices=CPU,
            dtypes=FLOAT32,
            from_plain_checkpoint=True,
            reads_prepared=False,
            lossless_for=frozenset({"float32", "float16"}),
            kernels=NATIVE,
            weight_bits=32,
            priority=10,
        ),
    )
    registry.add(
        "bf16_dot",
        "quire_quantizations.methods:BFloat16Products",
        capabilities=QuantizationCapabilities(
            devices=CPU,
            dtypes=FLOAT32,
            from_plain_checkpoint=True,
            reads_prepared=False,
            kernels=NATIVE,
            weight_bits=16,
        ),
    )
    registry.add(
        "int8",
        "quire_quantizations.methods:Int8Weights",
        capabilities=QuantizationCapabilities(
            devices=CPU,
            dtypes=FLOAT32,
            from_plain_checkpoint=True,
            reads_prepared=False,
            kernels=NATIVE,
            weight_bits=8.125,
        ),
    )
    registry.add(
        "int4",
        "quire_quantizations.methods:Int4Weights",
        capabilities=QuantizationCapabilities(
            devices=CPU,
            dtypes=FLOAT32,
            from_plain_checkpoint=True,
            reads_prepared=False,
            kernels=NATIVE,
            weight_bits=4.5,
            head_bits=8.125,
        ),
    )
