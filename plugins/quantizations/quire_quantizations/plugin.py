"""Registration of the quantization methods of this package. Imports nothing heavy."""

from dataclasses import replace
from functools import partial

from quire import Registrar, hookimpl
from quire.interfaces.quantization import Quantization, QuantizationCapabilities
from quire.machine.machine import interprets_kernels

_packed = partial(
    QuantizationCapabilities,
    devices=frozenset({"cpu"}),
    dtypes=frozenset({"float32"}),
    from_plain_checkpoint=True,
    reads_prepared=False,
    kernels=frozenset({"native"}),  # without them, plain float32 weights are the fastest
    probe="quire_quantizations.linear_library:LIBRARY.unavailable_reason",
    uses_weight_pages=True,
)
_READ_ANYWHERE = QuantizationCapabilities(
    devices=frozenset({"cpu", "cuda"}),
    dtypes=frozenset({"float32", "float16", "bfloat16"}),
)


@hookimpl
def register_quantizations(registry: Registrar[type[Quantization]]) -> None:
    """Register the quantization methods."""
    registry.add(
        "bf16",
        "quire_quantizations.methods:BFloat16Weights",
        capabilities=_packed(
            product_dtypes=frozenset({"bfloat16"}),
            lossless_for=frozenset({"bfloat16"}),
            weight_bits=16,
            priority=20,
        ),
    )
    registry.add(
        "float32",
        "quire_quantizations.methods:Float32Weights",
        capabilities=_packed(
            lossless_for=frozenset({"float32", "float16"}),
            weight_bits=32,
            priority=10,
        ),
    )
    registry.add(
        "float16",
        "quire_quantizations.methods:Float16Weights",
        capabilities=_packed(
            lossless_for=frozenset({"float16"}),
            weight_bits=16,
            priority=20,
        ),
    )
    registry.add(
        "bf16_dot",
        "quire_quantizations.methods:BFloat16Products",
        capabilities=_packed(
            weight_bits=16,
            product_dtypes=frozenset({"bfloat16"}),
            probe="quire_quantizations.linear_library:dot_unavailable_reason",
            deprecated="--dtype bfloat16 multiplies as it does",
        ),
    )
    for name, products in (("int8", "Int8Products"), ("int8_weight_only", "Int8Weights")):
        registry.add(
            name,
            f"quire_quantizations.methods:{products}",
            capabilities=_packed(weight_bits=8.125),
        )
    for name, products in (("int4", "Int4Products"), ("int4_weight_only", "Int4Weights")):
        registry.add(
            name,
            f"quire_quantizations.methods:{products}",
            capabilities=_packed(weight_bits=4.5, head_bits=8.125),
        )
    for name, codes, priority in (
        ("codes", "CheckpointCodes", 1),
        ("codes_int8", "CheckpointCodesInt8", 0),  # rounds inputs: only the user chooses it
    ):
        registry.add(
            name,
            f"quire_quantizations.methods:{codes}",
            capabilities=_packed(
                from_plain_checkpoint=False,
                stores_quantized=True,
                product_dtypes=frozenset({"bfloat16"}),
                weight_bits=9,
                bits_of_codes="quire_quantizations.code_bits:bits_of_codes",
                probe="quire_quantizations.linear_library:codes_unavailable_reason",
                priority=priority,
            ),
        )
    registry.add(
        "triton_codes",
        "quire_quantizations.triton.codes_linear:CodesOfCheckpoint",
        capabilities=QuantizationCapabilities(
            devices=frozenset({"cuda", "cpu"} if interprets_kernels() else {"cuda"}),
            dtypes=frozenset({"float32", "float16", "bfloat16"}),
            reads_prepared=False,
            stores_quantized=True,
            kernels=frozenset({"triton"}),
            weight_bits=9,
            bits_of_codes="quire_quantizations.code_bits:bits_of_triton_codes",
        ),
    )
    readers = "quire_quantizations.checkpoints"
    registry.add("gptq", f"{readers}.gptq:GPTQ", capabilities=_reader("gptq"))
    registry.add("awq", f"{readers}.awq:AWQ", capabilities=_reader("awq"))
    registry.add(
        "auto-round", f"{readers}.auto_round:AutoRound", capabilities=_reader("auto_round")
    )
    registry.add(
        "compressed-tensors",
        f"{readers}.compressed_tensors:CompressedTensors",
        capabilities=_reader("compressed_tensors"),
    )
    registry.add(
        "bitsandbytes", f"{readers}.bitsandbytes:BitsAndBytes", capabilities=_reader("bitsandbytes")
    )
    registry.add("gguf", f"{readers}.gguf:GGUF", capabilities=_reader("gguf"))
    fp8, mxfp4 = (replace(_reader(name), may_be_requantized=True) for name in ("fp8", "mxfp4"))
    registry.add("fp8", f"{readers}.block_fp8:BlockFP8", capabilities=fp8)
    registry.add("mxfp4", f"{readers}.mxfp4:MXFP4", capabilities=mxfp4)


def _reader(name: str) -> QuantizationCapabilities:
    """Return the capabilities of a reader whose options are described."""
    configs = "quire_quantizations.checkpoints.configs"
    return replace(_READ_ANYWHERE, describe=f"{configs}.{name}_config:describe")
