"""Modules of large packages that are executed when they are first used, not when imported.

A package may import modules that a program never uses. A deferred module is found and put into
`sys.modules` as usual, but its code runs with the first access to a name in it, or with the import
of a module below it. A module whose code changes other modules is of use to them without such an
access: the import of a dependent, which needs those changes, executes all deferred modules first.
"""

import sys
import threading
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# The import system asks for these; a module that lacks one has none.
_IMPORT_ATTRIBUTES = frozenset({"__path__", "__file__", "__cached__", "__loader__"})


class DeferredModules(MetaPathFinder):
    """Finder that defers the execution of some modules.

    Args:
        names: Names of the modules to defer.
        dependents: Names of modules that need the deferred ones to have been executed.
    """

    def __init__(self, names: Iterable[str], dependents: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self._dependents = frozenset(dependents)
        self._lock = threading.RLock()

    def install(self) -> None:
        """Defer these modules from now on; those that are imported already stay as they are."""
        sys.meta_path.insert(0, self)

    @property
    def pending(self) -> list[str]:
        """Names of the modules that were imported and not executed yet."""
        return [
            name for name in sorted(self._names) if isinstance(sys.modules.get(name), _Deferred)
        ]

    def execute_all(self) -> None:
        """Execute all modules that are still deferred, and defer none from now on."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name in self.pending:
            self._execute(sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a deferred module; None: other finders find this one."""
        if fullname in self._dependents:
            self.execute_all()
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if isinstance(parent, _Deferred):
            self._execute(parent)
            if (found := sys.modules.get(fullname)) is not None:  # the parent has imported it
                return _Imported(found).spec()
        if fullname not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader, self._execute)
        return spec

    def _execute(self, module: ModuleType) -> None:
        """Execute a module unless it was executed or is being executed by this thread."""
        with self._lock:
            if not isinstance(module, _Deferred) or module.__dict__.get(_RUNNING):
                return
            module.__dict__[_RUNNING] = True
            try:
                loader: Any = module.__loader__
                loader.exec_module(module)
                module.__class__ = ModuleType  # type: ignore[assignment]
                del module.__dict__[_EXECUTE]
            finally:
                del module.__dict__[_RUNNING]


_RUNNING = "__quire_is_running__"
_EXECUTE = "__quire_execute__"


class _Deferred(ModuleType):
    """A module that was not executed yet. The execution makes it an ordinary one."""

    def __getattr__(self, name: str) -> Any:
        if name in _IMPORT_ATTRIBUTES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _execute(self)
        return ModuleType.__getattribute__(self, name)

    def __dir__(self) -> list[str]:
        _execute(self)
        return list(ModuleType.__dir__(self))


def _execute(module: _Deferred) -> None:
    """Execute a module, unless another thread has done so meanwhile."""
    if (execute := module.__dict__.get(_EXECUTE)) is not None:
        execute(module)


class _DeferringLoader(Loader):
    """Loader of a deferred module: it prepares the module, and leaves the execution for later."""

    def __init__(self, loader: Loader, execute: Any) -> None:
        self._loader = loader
        self._execute = execute

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, with the path of a package."""
        module = _Deferred(spec.name)
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is, with the loader that executes it later."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        module.__dict__[_EXECUTE] = self._execute


class _Imported(Loader):
    """Loader of a module that was imported while it was looked for."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def spec(self) -> ModuleSpec:
        """Return a spec that loads it as it is; the import system takes the module's own."""
        self._module.__spec__ = ModuleSpec(self._module.__name__, self)
        return self._module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back."""
        module.__spec__ = self._spec
