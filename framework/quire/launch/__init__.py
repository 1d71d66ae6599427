"""Start-up of an engine: the package that connects all layers.

composing         settings -> composition, tokenizer and chat template; no torch
torch_modules     modules of torch that need not be executed when it is imported
core_startup      composition -> a scheduler with its workers, weights and cache
kv_memory         size of the KV cache
kv_store_setup    code and options of the external KV store
grammar_setup     the process that compiles grammars, and the check before it
parsers           parsers that split a completion into reasoning, tool calls and text
adapters          LoRA adapters that requests can name
cache_root        root hash of the prefix cache
estimate          memory of an engine, estimated before start-up
profile_estimate  its part for a GPU
starting_engine   the first part of a start: chosen parts, and a process that is configured
engine            all parts of a running engine, for `LLM`, `AsyncEngine` and the server

engine_process  an engine in a separate process:
  remote_core    the parent's end, with the methods of `EngineCore`
  engine_link    messages to and from the process, and detection of its death
  engine_wire    message types
  engine_start   launch of the process, until its engine is ready
  engine_config  its configuration, once the parts are chosen
  early_start    its launch before that, for a server
  entry          entry point of the process; then served_engine and core_server

workers  workers in processes of their own:
  worker_start  placement by the executor; then worker_set and set_runner
  worker_process  entry point of the process of a rank; then worker_server

agreement  comparison of what the processes of an engine have chosen
replicas   several engine processes behind one client

plan_composition   chooses the parts of an engine without starting it; no torch
start_engine       starts it: workers started, weights loaded, cache allocated
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.launch.composing import plan_composition
    from quire.launch.engine import Engine, start_engine

__all__ = ["Engine", "plan_composition", "start_engine"]

_MODULES = {
    "Engine": "quire.launch.engine",
    "plan_composition": "quire.launch.composing",
    "start_engine": "quire.launch.engine",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that importing this package stays light."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
