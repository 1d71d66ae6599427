"""The executor of ranks that join passes the conformance kit."""

from dataclasses import replace
from pathlib import Path

import pytest

from quire.errors import SettingsError
from quire.interfaces.executor import WorkerGrid
from quire.plugins.loading import load_plugins
from quire.testing.executor import ExecutorContract
from quire_executors.joined import JoinedExecutor


class TestJoined(ExecutorContract):
    executor_class = JoinedExecutor
    capabilities = load_plugins().registries.executors.entry("joined").capabilities


def test_ranks_that_could_not_know_the_key_are_not_waited_for():
    launch = TestJoined().launch(Path("unused"), WorkerGrid(2))
    point = launch.listen(None)
    point.has_key_file = False
    with pytest.raises(SettingsError, match="needs --worker-key-file FILE"):
        JoinedExecutor().place(replace(launch, listen=lambda host: point))
