"""Checks that a grid of workers can run a model, and choice of the executor that places them.

Each error names sizes that would work.
"""

from collections.abc import Callable
from dataclasses import replace

from quire.compose.choices.choosing import AUTO, choose_named
from quire.compose.composition import Choice, Composition
from quire.config import DEFAULT_EXECUTOR, GRID_EXECUTOR, ParallelSettings
from quire.errors import CapacityError, RefusedError, SettingsError
from quire.interfaces.executor import ExecutorCapabilities, WorkerGrid
from quire.interfaces.model import ModelCapabilities, ModelDescription
from quire.machine.machine import Machine
from quire.plugins.loading import Registries

NONE_INSTALLED = "none of the installed ones"


def choose_executor(
    registries: Registries, wanted: str, grid: WorkerGrid, num_replicas: int = 1
) -> Choice:
    """Choose the executor by name.

    Raises:
        PluginError: No plugin offers it.
        RefusedError: It does not support the grid, or the replicas.
    """
    registry = registries.executors
    default = DEFAULT_EXECUTOR if grid.size == 1 else GRID_EXECUTOR
    choice = choose_named(registry, default if wanted == AUTO else wanted, default, [AUTO])
    if num_replicas > 1 and choice.entry.capabilities.spans_machines:
        raise RefusedError(
            f"executor {choice.name!r} places one engine on several machines, and "
            f"data_parallel_size {num_replicas} starts replicas on this one; set "
            "data_parallel_size to 1, and start an engine for each replica"
        )
    reason = _executor_refusal(choice.entry.capabilities, grid)
    if reason is None:
        return choice
    able = [e.name for e in registry.offers() if _executor_refusal(e.capabilities, grid) is None]
    raise RefusedError(
        f"executor {choice.name!r} supports {reason} is set; executors that support it: "
        f"{', '.join(dict.fromkeys(able)) or NONE_INSTALLED}"
    )


def check_worker_options(parallel: ParallelSettings, executor: Choice) -> None:
    """Check that no option for workers on other machines is set if there are none.

    Raises:
        SettingsError: One is set.
    """
    if executor.entry.capabilities.spans_machines:
        return
    for name, value in (
        ("worker_address", parallel.worker_address),
        ("worker_key_file", parallel.worker_key_file),
    ):
        if value:
            raise SettingsError(
                f"{name} {value!r} is for workers on other machines, and executor "
                f"{executor.name!r} places all workers on this one; add --executor joined, or "
                f"leave {name} out"
            )


def check_model(model: Choice, description: ModelDescription, grid: WorkerGrid) -> None:
    """Check that the model supports the grid.

    Raises:
        RefusedError: It does not.
    """
    capabilities: ModelCapabilities = model.entry.capabilities
    if grid.tp_size > 1 and not capabilities.supports_tensor_parallel:
        raise RefusedError(
            f"model {model.name!r} does not support tensor parallelism; set tensor_parallel_size "
            "to 1"
        )
    if grid.pp_size > 1 and not capabilities.supports_pipeline_parallel:
        raise RefusedError(
            f"model {model.name!r} does not support pipeline parallelism; set "
            "pipeline_parallel_size to 1"
        )
    if grid.pp_size > 1 and description.indivisible_reason:
        raise RefusedError(
            f"model {model.name!r} cannot be divided into pipeline stages: "
            f"{description.indivisible_reason}; set pipeline_parallel_size to 1"
        )


def divided_sizes(description: ModelDescription, expert_parallel: bool) -> ModelDescription:
    """Return the description with the sizes that tensor parallelism divides in these settings.

    Args:
        description: Description of the model.
        expert_parallel: Whether whole experts are divided over the devices.

    Raises:
        SettingsError: There are no experts to divide.
    """
    if not expert_parallel:
        sizes = {**description.sharded_sizes, **description.expert_sizes}
        return replace(description, sharded_sizes=sizes, num_experts=0)
    if not description.num_experts:
        raise SettingsError(
            f"enable_expert_parallel is set, and {description.architecture} has no experts; leave "
            "it out"
        )
    return description


def check_shards(
    description: ModelDescription,
    tp_size: int,
    check_specs: Callable[[int], object],
) -> None:
    """Check that the layers can be sharded.

    Args:
        description: Description of the model, of `divided_sizes`.
        tp_size: Number of devices that each layer is sharded over.
        check_specs: Function that raises a `SettingsError` if the KV-cache specs do not support a
            number of devices.

    Raises:
        SettingsError: They cannot; the message names the sizes that work.
    """

    def refusal(size: int) -> str | None:
        return _size_refusal(description, size) or _specs_refusal(check_specs, size)

    check_specs(1)  # what no number of devices changes is said as it is
    reason = refusal(tp_size)
    if reason is None:
        return
    working = [size for size in range(1, description.num_heads + 1) if refusal(size) is None]
    raise SettingsError(
        f"tensor_parallel_size {tp_size} {reason}; sizes that work for this model: "
        f"{', '.join(map(str, working))}"
    )


def check_devices(
    grid: WorkerGrid, machine: Machine, device: str, executor: ExecutorCapabilities
) -> None:
    """Check that this machine has a GPU for each rank, unless ranks run on other machines too.

    Raises:
        CapacityError: It has fewer.
    """
    visible = machine.num_gpus
    if device != "cuda" or executor.spans_machines or visible is None or visible >= grid.size:
        return
    raise CapacityError(
        f"tensor_parallel_size {grid.tp_size} with pipeline_parallel_size {grid.pp_size} needs "
        f"{grid.size} GPUs, {visible} {'is' if visible == 1 else 'are'} visible on this machine; "
        f"choose sizes with a product of at most {max(1, visible)}, make more GPUs visible "
        "(CUDA_VISIBLE_DEVICES), or choose an executor that uses several machines"
    )


def cores_warning(composition: Composition, num_replicas: int = 1) -> str | None:
    """Return a warning if the ranks outnumber the cores of this machine; None if they do not.

    Args:
        composition: Composition of the engine.
        num_replicas: Number of engines on this machine.
    """
    ranks, cores = composition.grid.size * num_replicas, composition.machine.num_cores
    spans_machines = composition.executor.entry.capabilities.spans_machines
    if composition.device != "cpu" or spans_machines or cores is None or ranks <= max(1, cores):
        return None
    return (
        f"{ranks} ranks share {cores} CPU core{'' if cores == 1 else 's'} of this machine, so each "
        "waits for the others; sizes with a product of at most the number of cores are faster"
    )


def _executor_refusal(capabilities: ExecutorCapabilities, grid: WorkerGrid) -> str | None:
    limits = (
        ("tensor_parallel_size", capabilities.max_tensor_parallel_size, grid.tp_size),
        ("pipeline_parallel_size", capabilities.max_pipeline_parallel_size, grid.pp_size),
    )
    for option, most, size in limits:
        if most is not None and size > most:
            return f"a {option} of at most {most}, and {size}"
    return None


def _size_refusal(description: ModelDescription, tp_size: int) -> str | None:
    if description.num_heads % tp_size:
        return f"does not divide the model's {description.num_heads} attention heads"
    if description.num_experts % tp_size:
        return f"does not divide the model's {description.num_experts} experts"
    for name, size in description.sharded_sizes.items():
        if size % tp_size:
            return f"does not divide the model's {name} of {size}"
    return None


def _specs_refusal(check_specs: Callable[[int], object], tp_size: int) -> str | None:
    try:
        check_specs(tp_size)
    except SettingsError as error:
        return f"does not suit the model: {error}"
    return None
