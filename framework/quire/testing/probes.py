"""Check of a part's probe, which runs before the part is chosen."""

from __future__ import annotations

from quire.testing.torch_imports import imports_torch

CODE = """
from pkgutil import resolve_name
reason = resolve_name(sys.argv[1])()
assert reason is None or (isinstance(reason, str) and reason), (
    f"a probe returns a reason or None, and {sys.argv[1]} returned {reason!r}"
)
"""


def check_probe(probe: str | None) -> None:
    """Run a probe in a fresh process: it returns a reason or None, and imports no torch.

    Args:
        probe: Import string; None: the part has no probe.

    Raises:
        AssertionError: The probe is wrong; the message says how.
    """
    if probe is not None:
        assert not imports_torch(CODE, probe), f"the probe {probe} imports torch"
