"""R2 and R24: the clients that people bring, in environments of their own.

The checks are those of `tests/clients`, which read every response with the client's own types.
"""

import sys
from pathlib import Path
from types import ModuleType

from row import Limits, Measured
from served import serve

ROOT = Path(__file__).parents[2]
PARTS = ROOT / "tests" / "parts"
CHECKPOINT = ROOT / "plugins" / "demo" / "quire_demo" / "checkpoint"
PINNED = "pinned versions, the newest of 2026-11-27"
STRICT = ("openai2", "openai3")


def strict_client(limits: Limits) -> Measured:
    """Run the checks of both major versions of OpenAI's client, which checks all types."""
    del limits
    return _measured(STRICT)


def all_clients(limits: Limits) -> Measured:
    """Run the checks of all clients."""
    del limits
    return _measured(tuple(_checks().CLIENTS))


def _measured(names: tuple[str, ...]) -> Measured:
    parts, is_met = [], True
    with serve() as server:
        for name in names:
            found = _checks().run_checks(name, server.url, CHECKPOINT)
            num = len(found.passed) + len(found.failures)
            part = f"{found.package}: {len(found.passed)} of {num} checks"
            if found.failures:
                part += f", not {', '.join(sorted(found.failures))}"
            if found.missing:
                routes = ", ".join(sorted(set(found.missing.values())))
                part += f", {len(found.missing)} need {routes}, which the server does not have"
            parts.append(part)
            is_met = is_met and bool(found.passed) and not (found.failures or found.missing)
    return Measured(f"{PINNED}: {'; '.join(parts)}", is_met)


def _checks() -> ModuleType:
    """Return the part of the tests that runs checks."""
    if str(PARTS) not in sys.path:
        sys.path.append(str(PARTS))
    import client_checks

    return client_checks
