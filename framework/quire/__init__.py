"""An LLM inference and serving engine composed from plugins.

A user needs `LLM`, `AsyncEngine` and `SamplingParams`; a plugin author `hookimpl`,
`quire.interfaces` and `quire.layers`. Names are imported lazily, on first use, so
`from quire import hookimpl` does not load the engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.async_engine import AsyncEngine
    from quire.cached_blocks import CachedBlocks
    from quire.hookspecs import hookimpl
    from quire.llm import LLM
    from quire.outputs import LoRARequest, RequestOutput
    from quire.plugins.registry import Registrar
    from quire.sampling_params import (
        BeamSearchParams,
        RepetitionDetectionParams,
        SamplingParams,
        StructuredOutputsParams,
    )

    __version__: str

__all__ = [
    "LLM",
    "AsyncEngine",
    "BeamSearchParams",
    "CachedBlocks",
    "LoRARequest",
    "Registrar",
    "RepetitionDetectionParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
    "hookimpl",
]

_MODULES = {
    "LLM": "quire.llm",
    "AsyncEngine": "quire.async_engine",
    "BeamSearchParams": "quire.sampling_params",
    "CachedBlocks": "quire.cached_blocks",
    "LoRARequest": "quire.outputs",
    "Registrar": "quire.plugins.registry",
    "RepetitionDetectionParams": "quire.sampling_params",
    "RequestOutput": "quire.outputs",
    "SamplingParams": "quire.sampling_params",
    "StructuredOutputsParams": "quire.sampling_params",
    "hookimpl": "quire.hookspecs",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version("quire")
    if name not in _MODULES:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
