"""The kit of executors, on the one that ships."""

from quire.plugins.loading import load_plugins
from quire.testing.executor import ExecutorContract
from quire_executors.in_process import InProcessExecutor


class TestInProcess(ExecutorContract):
    executor_class = InProcessExecutor
    capabilities = load_plugins().registries.executors.entry("in_process").capabilities
