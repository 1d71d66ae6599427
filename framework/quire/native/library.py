"""One C++ source, compiled in the background while other things load, and then called."""

from __future__ import annotations

import ctypes
import logging
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from quire.errors import NativeUnavailableError, PluginLoadError, SettingsError
from quire.native.availability import POOL_SOURCE
from quire.native.build import Build
from quire.native.compiler import CppCompiler, find_compiler
from quire.native.recording import traceable

__all__ = ["NativeLibrary", "NativeUnavailableError"]

POOL_SETTER = "use_pool"  # of threads.h

logger = logging.getLogger(__name__)


class NativeLibrary:
    """The functions of one source. Make one for the process, beside the source.

    Args:
        name: For people.
        source: A C++ file; its functions are `extern "C"` and visible (`EXPORT`). It may include
            quire's headers, and headers (`*.h`) beside it.
        functions: The types of each function's arguments, by its name; they return nothing. What a
            caller passes for a pointer is a whole number (`Tensor.data_ptr()`), or None.
        repeats: Whether a call may be made again later, with the same arguments: pointers are to
            memory of tensors, or of what lives as long as the engine. Steps that make other calls
            cannot be recorded, and go through Python each time.
    """

    def __init__(
        self,
        name: str,
        source: Path,
        functions: Mapping[str, Sequence[type[Any]]],
        *,
        repeats: bool = False,
    ) -> None:
        self.name = name
        self._repeats = repeats
        self._source = source
        self._functions = functions
        self._lock = threading.Lock()
        self._built: Future[ctypes.CDLL | str] | None = None  # or why it cannot be had

    def begin(self) -> None:
        """Start to compile, or to load what was compiled before, in the background."""
        self._begun()

    def load(self) -> ctypes.CDLL:
        """Return the functions, once they are there.

        Raises:
            NativeUnavailableError: They cannot be had on this machine; the same each time.
            PluginLoadError: The source has no such functions.
            SettingsError: The environment names an instruction set that is not there.
        """
        library = self._begun().result()
        if isinstance(library, str):
            raise NativeUnavailableError(library)
        return library

    def _begun(self) -> Future[ctypes.CDLL | str]:
        with self._lock:
            if self._built is None:
                built: Future[ctypes.CDLL | str] = Future()
                name = f"compile {self.name}"
                threading.Thread(target=self._build, args=(built,), name=name, daemon=True).start()
                self._built = built
            return self._built

    def _build(self, built: Future[ctypes.CDLL | str]) -> None:
        """Tell the outcome. An error is kept as its text: a traceback would keep its callers."""
        try:
            library = self._declared(self._open())
            self._join_pool(library)
            built.set_result(library)
        except NativeUnavailableError as error:
            _COMPLAINTS.say(
                f"torch's operators run, not the CPU kernels of {self.name}", str(error)
            )
            built.set_result(str(error))
        except (PluginLoadError, SettingsError) as error:
            built.set_exception(error)
        except BaseException as error:
            built.set_exception(error)
            raise

    def _open(self) -> ctypes.CDLL:
        build = Build.here(self._source)
        try:
            compiler = find_compiler()
            return _opened(build, compiler) or self._made(build, compiler)
        except NativeUnavailableError as error:
            library = _opened(build, None)
            if library is None:
                raise
            logger.info("%s: compiled before, by another compiler; %s", self.name, error)
            return library

    def _made(self, build: Build, compiler: CppCompiler) -> ctypes.CDLL:
        """Compile, keep and load; what cannot be loaded is not kept."""
        logger.info("compiling the CPU kernels of %s", self.name)
        code = build.make(compiler)
        kept = build.keep(code, compiler)
        if kept is None:
            return _loaded_from_elsewhere(code, compiler)
        try:
            return ctypes.CDLL(str(kept))
        except OSError as error:
            kept.unlink(missing_ok=True)
            library = _loaded_from_elsewhere(code, compiler)
            what = f"compiled kernels are not kept, for they cannot be loaded from {kept.parent}"
            _COMPLAINTS.say(what, _said(error, kept))
            return library

    def _declared(self, library: ctypes.CDLL) -> ctypes.CDLL:
        for name, types in self._functions.items():
            try:
                function = getattr(library, name)  # it is looked up in the library here
            except AttributeError as error:
                raise PluginLoadError(
                    f"{self._source} has no function {name}; is it marked EXPORT?"
                ) from error
            function.argtypes, function.restype = tuple(types), None
            setattr(library, name, traceable(function, f"{self.name}: {name}", self._repeats))
        return library

    def _join_pool(self, library: ctypes.CDLL) -> None:
        """Give a library that includes threads.h the pool of this process."""
        try:
            use_pool = library[POOL_SETTER]
        except AttributeError:
            return  # it computes on one thread
        use_pool(ctypes.cast(_POOL.load()["run_parts"], ctypes.c_void_p))


def _opened(build: Build, compiler: CppCompiler | None) -> ctypes.CDLL | None:
    """Load what was made before, by this compiler or by any; None: there is nothing usable."""
    path = build.kept(None if compiler is None else compiler.version)
    if path is None:
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        logger.warning("the kept library %s cannot be loaded: %s", path, error)
        return None


def _loaded_from_elsewhere(code: bytes, compiler: CppCompiler) -> ctypes.CDLL:
    """Load what is kept nowhere."""
    with tempfile.TemporaryDirectory(prefix="quire-native-") as folder:
        path = Path(folder) / "library.so"
        try:
            path.write_bytes(code)
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeUnavailableError(
                f"what {compiler.command[0]} made cannot be loaded: {_said(error, path)}"
            ) from error


def _said(error: OSError, path: Path) -> str:
    """Return what the loader says, without the library's path: it is the same for each library."""
    return str(error).removeprefix(f"{path}: ")


class _LibraryComplaints:
    """Warns of a reason once, however many libraries it concerns.

    Reasons are the same if their first lines are: what a compiler says below names its source.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def say(self, what: str, reason: str) -> None:
        """Warn of what is so for this reason; after the first time, only mention it."""
        cause = reason.partition("\n")[0]
        with self._lock:
            is_new = cause not in self._said
            self._said.add(cause)
        if is_new:
            logger.warning("%s: %s", what, reason)
        else:
            logger.info("%s either: %s (as above)", what, cause.rstrip(":"))
            logger.debug("%s: %s", what, reason)


_COMPLAINTS = _LibraryComplaints()
_POOL = NativeLibrary(
    "the thread pool",
    POOL_SOURCE,
    {"run_parts": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)},
)
