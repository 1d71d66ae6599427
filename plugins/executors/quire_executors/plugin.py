"""Registration of the executors of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.executor import Executor, ExecutorCapabilities


@hookimpl
def register_executors(registry: Registrar[type[Executor]]) -> None:
    """Register the executors."""
    registry.add(
        "in_process",
        "quire_executors.in_process:InProcessExecutor",
        api=2,
        capabilities=ExecutorCapabilities(),
    )
    registry.add(
        "processes",
        "quire_executors.processes:ProcessesExecutor",
        api=2,
        capabilities=ExecutorCapabilities(
            max_tensor_parallel_size=None, max_pipeline_parallel_size=None
        ),
    )
    registry.add(
        "joined",
        "quire_executors.joined:JoinedExecutor",
        api=2,
        capabilities=ExecutorCapabilities(
            max_tensor_parallel_size=None, max_pipeline_parallel_size=None, spans_machines=True
        ),
    )
    registry.add(
        "ray",
        "quire_executors.ray.ray_executor:RayExecutor",
        api=2,
        capabilities=ExecutorCapabilities(
            max_tensor_parallel_size=None, max_pipeline_parallel_size=None, spans_machines=True
        ),
    )
