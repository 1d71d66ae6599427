"""The pytest plugin of quire. It is loaded by every pytest run beside quire, so it imports nothing.

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
    """What all installed plugins offer; a plugin's own tests find its names here."""
    from quire.plugins.loading import load_plugins

    return load_plugins().registries
