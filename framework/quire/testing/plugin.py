"""The pytest plugin of quire. Every pytest run beside quire loads it, so it imports nothing.

The conformance kits are ordinary modules, imported by the tests that use them:
`quire.testing.attention`, `quire.testing.sampling`, `quire.testing.kv_cache` and the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quire.plugins.loading import Registries


@pytest.fixture(scope="session")
def quire_registries() -> Registries:
    """Registries of all installed plugins, for tests that look up a registered name."""
    from quire.plugins.loading import load_plugins

    return load_plugins().registries
