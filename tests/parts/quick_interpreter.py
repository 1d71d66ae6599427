"""Triton's interpreter without work that it repeats: interpreted kernels take half the time.

Each call of a function of a kernel replaces all functions of `triton.language` anew. Each addition
and each product of integers is computed again in 64 bits, for an assertion that is made only where
`debug` is set, which it is not.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

CHANGED = ("_patch_lang", "_get_np_dtype", "interpreter_builder")
INTERPRETER = "triton.runtime.interpreter"


def quicken_interpreter() -> None:
    """Change the interpreter, once a process, if anything has imported it."""
    module: Any = sys.modules.get(INTERPRETER)
    if module is None or not all(hasattr(module, name) for name in CHANGED):
        return  # nothing is interpreted, or another version of Triton interprets
    if isinstance(module._patch_lang, PatchOnce):
        return
    module._patch_lang = PatchOnce(module._patch_lang)
    module._get_np_dtype = NumpyTypes(module._get_np_dtype)
    builder = module.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


class PatchOnce:
    """Replaces the functions that a kernel's module sees once, and leaves them so.

    Args:
        patch: The interpreter's own function, whose result restores what it has replaced.
    """

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch
        self._modules: dict[int, Any] = {}

    def __call__(self, fn: Any) -> Any:
        if id(fn.__globals__) not in self._modules:
            self._modules[id(fn.__globals__)] = fn.__globals__
            self._nothing = type(self._patch(fn))
        return self._nothing()


class NumpyTypes:
    """NumPy's types of Triton's types, each looked up once.

    Args:
        find: The interpreter's own function.
    """

    def __init__(self, find: Callable[[Any], Any]) -> None:
        self._find = find
        self._found: dict[str, Any] = {}

    def __call__(self, dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in self._found:
            self._found[name] = self._find(dtype)
        return self._found[name]
