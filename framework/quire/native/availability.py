"""Check whether compiled CPU kernels are available on this machine, without compiling any."""

from pathlib import Path

from quire.errors import NativeUnavailableError
from quire.machine import instruction_sets
from quire.native.build import Build
from quire.native.compiler import extra_flags, locate_compiler

POOL_SOURCE = Path(__file__).parent / "pool.cpp"


def native_unavailable_reason() -> str | None:
    """Return why compiled CPU kernels cannot be used on this machine; None: they should work.

    Without a compiler they are available if the thread pool, which all of them need, is in the
    cache, compiled from the same sources (quire's headers included) with the same flags.

    Raises:
        SettingsError: The environment names an instruction set that this processor does not have,
            or compiler options that cannot be parsed.
    """
    chosen = instruction_sets.here()
    if isinstance(chosen, str):
        return f"this processor has no instruction set that the kernels support: {chosen}"
    extra_flags()
    try:
        locate_compiler()
    except NativeUnavailableError as error:
        return str(error) if Build.here(POOL_SOURCE).find_cached(None) is None else None
    return None
