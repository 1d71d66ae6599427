"""Wire an engine together: the one place that knows every floor.

composing   settings -> what was chosen, and what reads text; no torch
core        what was chosen -> a scheduler with its workers, weights and cache
memory      how much of the machine the KV cache gets
grammars    the process that compiles grammars, and the check before it
parsers     what splits an answer into thinking, calls and text
adapters    LoRA adapters that requests can name
cache_root  what all KV of an engine depends on
engine      all of it, as `LLM`, `AsyncEngine` and the server hold it

remote_core     an engine in a process of its own, with the same verbs
engine_link     its process: messages and death; child_process starts and ends it
engine_process  where that process begins; then served_engine and core_server
engine_wire     what the two say to each other

plan_composition   what would run, without torch
start_engine       the same, running: workers started, weights loaded, cache allocated
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.launch.composing import plan_composition
    from quire.launch.engine import Engine, start_engine

__all__ = ["Engine", "plan_composition", "start_engine"]

_HOMES = {
    "Engine": "quire.launch.engine",
    "plan_composition": "quire.launch.composing",
    "start_engine": "quire.launch.engine",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: a process that starts has other things to do first."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
