"""Native libraries: a C++ source that is compiled or loaded from the cache in the background."""

from __future__ import annotations

import ctypes
import logging
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from quire.errors import NativeUnavailableError, PluginLoadError, SettingsError
from quire.native.availability import POOL_SOURCE
from quire.native.build import Build
from quire.native.compiler import CppCompiler, find_compiler
from quire.native.logged_reasons import LoggedReasons
from quire.native.stored_calls import Check, ReplayableFunction, letters_of
from quire.native.tracing import traceable, traceable_compiled

__all__ = ["NativeLibrary", "NativeUnavailableError"]

POOL_SETTER = "use_pool"  # of threads.h

logger = logging.getLogger(__name__)


class NativeLibrary:
    """The functions of one C++ source. Create one instance per process, in a module.

    Args:
        name: Name of the library for messages.
        source: A C++ file; its functions are `extern "C"` and visible (`EXPORT`). It may include
            quire's headers, and headers (`*.h`) in its own folder.
        functions: Argument types by function name. A pointer argument is passed as an integer
            (`Tensor.data_ptr()`) or None.
        repeats: True if calls may be replayed later with the same arguments: pointers are to memory
            of tensors, or to memory that lives as long as the engine. Steps with calls of other
            libraries are not traced as CPU graphs; they run through Python each time.
        macros: Names that the source finds defined, if it has several variants.
        check: Called after each call with the status that it returned, the function and its
            arguments, also in replays; raises an error unless the status is 0. None: the functions
            return nothing.
    """

    def __init__(
        self,
        name: str,
        source: Path,
        functions: Mapping[str, Sequence[type[Any]]],
        *,
        repeats: bool = False,
        macros: Sequence[str] = (),
        check: Check | None = None,
    ) -> None:
        self.name = name
        self.repeats = repeats
        self.source = source
        self.macros = tuple(macros)
        self.functions = functions
        self.check = check
        self._lock = threading.Lock()
        # The result is the library, or the reason why it is unavailable.
        self._library_future: Future[ctypes.CDLL | str] | None = None

    def prepare(self) -> None:
        """Start to compile or load the library, without waiting for it."""
        self._start_build()

    def load(self) -> ctypes.CDLL:
        """Wait for the library, and return it.

        Raises:
            NativeUnavailableError: It is not available on this machine; raised by each call.
            PluginLoadError: The source does not export one of the functions, or with other types.
            SettingsError: The environment names an instruction set that this processor does not
                have.
        """
        library = self._start_build().result()
        if isinstance(library, str):
            raise NativeUnavailableError(library)
        return library

    def unavailable_reason(self) -> str | None:
        """Wait for the library, and return the reason why it is unavailable; None: it is loaded.

        Raises:
            PluginLoadError: The source does not export one of the functions, or with other types.
            SettingsError: The environment names an instruction set that this processor does not
                have.
        """
        library = self._start_build().result()
        return library if isinstance(library, str) else None

    def _start_build(self) -> Future[ctypes.CDLL | str]:
        with self._lock:
            if self._library_future is None:
                built: Future[ctypes.CDLL | str] = Future()
                name = f"compile {self.name}"
                threading.Thread(target=self._build, args=(built,), name=name, daemon=True).start()
                self._library_future = built
            return self._library_future

    def _build(self, built: Future[ctypes.CDLL | str]) -> None:
        """Set the future's result. Errors are kept as text: a traceback would keep its frames."""
        try:
            library = self._declare_functions(self._load_or_compile())
            self._connect_pool(library)
            built.set_result(library)
        except NativeUnavailableError as error:
            built.set_result(str(error))
        except (PluginLoadError, SettingsError) as error:
            built.set_exception(error)
        except BaseException as error:
            built.set_exception(error)
            raise

    def _load_or_compile(self) -> ctypes.CDLL:
        build = Build.here(self.source, self.functions if self.repeats else (), self.macros)
        try:
            compiler = find_compiler()
            return _load_cached(build, compiler) or self._compile(build, compiler)
        except NativeUnavailableError as error:
            library = _load_cached(build, None)
            if library is None:
                raise
            logger.info("%s: cached kernels of another compiler are used; %s", self.name, error)
            return library

    def _compile(self, build: Build, compiler: CppCompiler) -> ctypes.CDLL:
        """Compile, cache and load; a library that cannot be loaded from the cache is removed."""
        logger.info("compiling the CPU kernels of %s", self.name)
        code = build.make(compiler)
        kept = build.store(code, compiler)
        if kept is None:
            return _load_uncached(code, compiler)
        try:
            return ctypes.CDLL(str(kept))
        except OSError as error:
            kept.unlink(missing_ok=True)
            library = _load_uncached(code, compiler)
            reason = _loader_message(error, kept)
            if _LOGGED.is_new(reason):
                logger.warning(
                    "compiled kernels are not cached, as they cannot be loaded from %s: %s",
                    kept.parent,
                    reason,
                )
            return library

    def _declare_functions(self, library: ctypes.CDLL) -> ctypes.CDLL:
        for name, types in self.functions.items():
            try:
                function = getattr(library, name)  # ctypes looks the function up here
            except AttributeError as error:
                raise PluginLoadError(
                    f"{self.source} has no function {name}; is it marked EXPORT?"
                ) from error
            function.argtypes, function.restype = tuple(types), None
            if self.check is not None:
                function.restype, function.errcheck = ctypes.c_int, self.check
            setattr(library, name, self._traceable(library, function, name))
        return library

    def _traceable(self, library: ctypes.CDLL, function: Any, name: str) -> Callable[..., object]:
        if self.repeats:
            return traceable_compiled(function, self._replayable(library, name))
        return traceable(function, f"{self.name}: {name}", repeats=False)

    def _replayable(self, library: ctypes.CDLL, name: str) -> ReplayableFunction:
        """Return the function for replays, once its types have been compared."""
        replayable, declared = ReplayableFunction(library, name), letters_of(self.functions[name])
        if replayable.types != declared:
            raise PluginLoadError(
                f"{self.source}: the parameters of {name} are {replayable.types!r} in C++ and are "
                f"declared as {declared!r} in Python (P: pointer; q, i, h, b: integer of 8, 4, 2, "
                "1 bytes; d, f: floating-point number of 8, 4 bytes)"
            )
        return replayable

    def _connect_pool(self, library: ctypes.CDLL) -> None:
        """Connect a library that includes threads.h to the thread pool of this process."""
        try:
            use_pool = library[POOL_SETTER]
        except AttributeError:
            return  # the library does not include threads.h
        use_pool(ctypes.cast(_POOL.load()["run_parts"], ctypes.c_void_p))


def _load_cached(build: Build, compiler: CppCompiler | None) -> ctypes.CDLL | None:
    """Load the cached library of this compiler, or of any; None: there is no usable one."""
    path = build.find_cached(None if compiler is None else compiler.version)
    if path is None:
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        logger.warning("the cached library %s cannot be loaded: %s", path, error)
        return None


def _load_uncached(code: bytes, compiler: CppCompiler) -> ctypes.CDLL:
    """Load a library from a temporary file."""
    with tempfile.TemporaryDirectory(prefix="quire-native-") as folder:
        path = Path(folder) / "library.so"
        try:
            path.write_bytes(code)
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeUnavailableError(
                f"the library that {compiler.command[0]} compiled cannot be loaded: "
                f"{_loader_message(error, path)}"
            ) from error


def _loader_message(error: OSError, path: Path) -> str:
    """Return the loader's message without the library's path, which differs between libraries."""
    return str(error).removeprefix(f"{path}: ")


_LOGGED = LoggedReasons()
_POOL = NativeLibrary(
    "the thread pool",
    POOL_SOURCE,
    {"run_parts": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)},
)
