"""The executor of worker processes passes the conformance kit."""

from quire.plugins.loading import load_plugins
from quire.testing.executor import ExecutorContract
from quire_executors.processes import ProcessesExecutor


class TestProcesses(ExecutorContract):
    executor_class = ProcessesExecutor
    capabilities = load_plugins().registries.executors.entry("processes").capabilities
