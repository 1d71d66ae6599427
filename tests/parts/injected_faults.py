"""Rules of the plugin quire_faults in this process, and engines that run with them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quire import LLM
from quire_faults.injection import VARIABLE, injection

PLUGIN = "quire_faults.plugin"  # its hooks depend on the rules


@contextmanager
def injected(rules: str, **options: object) -> Iterator[LLM]:
    """Yield an engine of the demo model in this process, with injected faults.

    Args:
        rules: Value of `QUIRE_FAULTS`.
        options: Options of `LLM`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, rules)
        _read_again()
        llm = LLM("demo", **options)
        try:
            yield llm
        finally:
            llm.close()
    _read_again()


def _read_again() -> None:
    injection.cache_clear()
    sys.modules.pop(PLUGIN, None)
