"""Whether compiled CPU kernels can be expected here, found out without compiling any."""

from pathlib import Path

from quire.errors import NativeUnavailableError
from quire.machine import instruction_sets
from quire.native.build import Build
from quire.native.compiler import extra_flags, locate_compiler

POOL_SOURCE = Path(__file__).parent / "pool.cpp"


def native_unavailable_reason() -> str | None:
    """Return why compiled CPU kernels cannot be used on this machine; None: they should work.

    Without a compiler they should where the thread pool, which all of them need, was compiled
    before from the same texts, quire's headers among them, with the same flags.

    Raises:
        SettingsError: The environment names an instruction set that is not there, or holds words
            for the compiler that cannot be read.
    """
    chosen = instruction_sets.here()
    if isinstance(chosen, str):
        return f"this processor has no instruction set that kernels are written for: {chosen}"
    extra_flags()
    try:
        locate_compiler()
    except NativeUnavailableError as error:
        return str(error) if Build.here(POOL_SOURCE).kept(None) is None else None
    return None
