"""A class that a user's Python file defines, imported by the path of the file."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from quire.errors import PluginLoadError


def load_class(path: Path, name: str | None, interface: type) -> type:
    """Import a Python file, and return the class of it that has an interface.

    Args:
        path: Path of the file.
        name: Name of the class; None: the only one.
        interface: Base class that it must have.

    Raises:
        PluginLoadError: The file cannot be imported, or has no such class, or several.
    """
    module = _import(path.resolve())
    wanted = f"{interface.__module__}.{interface.__name__}"
    found = {
        each.__name__: each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, interface) and each is not interface
    }
    own = [each for each in found.values() if each.__module__ == module.__name__]
    if name is not None and name not in found:
        defined = ", ".join(each.__name__ for each in own) or "none"
        raise PluginLoadError(f"{path} defines no subclass of {wanted} named {name!r} ({defined})")
    if name is None and not own:
        raise PluginLoadError(f"{path} defines no subclass of {wanted}")
    if name is None and len(own) > 1:
        names = ", ".join(each.__name__ for each in own)
        raise PluginLoadError(
            f"{path} defines several subclasses of {wanted} ({names}); name one: "
            f"{path}:{own[0].__name__}"
        )
    chosen = own[0] if name is None else found[name]
    if missing := ", ".join(sorted(vars(chosen).get("__abstractmethods__", ()))):
        raise PluginLoadError(f"{path}: the class {chosen.__name__} lacks the methods {missing}")
    return chosen


def _import(path: Path) -> ModuleType:
    name = f"quire_file_{path.stem}_{abs(hash(path)):x}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginLoadError(f"{path} is no Python file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PluginLoadError(
            f"{path}, line {_line(error, path)}: {type(error).__name__}: {_message(error)}"
        ) from error
    return module


def _line(error: BaseException, path: Path) -> int | None:
    """Return the line of the file at which an import has failed."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    lines = [frame.lineno for frame in extract_tb(error.__traceback__)
             if frame.filename == str(path)]  # fmt: skip
    return lines[-1] if lines else None


def _message(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)
