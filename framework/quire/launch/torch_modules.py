"""Modules of torch that no part of quire uses on a CPU, and which `import torch` need not execute.

They are for compilers, exports, distributions and torch's own quantization, and take half of the
time of the import. They stay usable: the first access to a name in one of them executes it.
"""

import sys
from importlib.metadata import PackageNotFoundError, version

from quire.launch.composing import Composed
from quire.process.deferred_modules import DeferredModules

TESTED_VERSIONS = ("2.13",)  # of torch; others may need these modules while they are imported
UNUSED = (
    "torch._meta_registrations",
    "torch.distributions",
    "torch.export",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.quantization",
)
# These compute with fake tensors, and so with the shape functions that `_meta_registrations` adds.
COMPILERS = ("torch._dynamo", "torch._inductor")


def defer_unused_modules(composed: Composed) -> None:
    """Defer the unused modules of torch in this process, if its code is known not to need them.

    To be called before torch is imported, in a process that belongs to quire. Nothing is deferred
    for a GPU, for another version of torch, with a plugin that is not quire's own, or for a model
    of transformers: such code may compute with tensors without data, whose operators the deferred
    modules register.
    """
    composition = composed.composition
    is_own_code = all(
        record.source.is_ours for record in composed.plugins.records if record.state == "loaded"
    )
    is_fallback = composition.model.entry.capabilities.is_fallback
    if composition.device != "cpu" or is_fallback or not is_own_code or "torch" in sys.modules:
        return
    if _torch_version().startswith(tuple(f"{tested}." for tested in TESTED_VERSIONS)):
        DeferredModules(UNUSED, COMPILERS).install()


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
