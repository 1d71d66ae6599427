"""GPUs of each replica, by CUDA_VISIBLE_DEVICES of its process."""

from collections.abc import Sequence

from quire.errors import CapacityError

VARIABLE = "CUDA_VISIBLE_DEVICES"


def divide_devices(
    devices: Sequence[str], num_replicas: int, num_each: int
) -> list[dict[str, str]]:
    """Return the environment of each replica's process.

    Args:
        devices: Indices or UUIDs of the GPUs that this process may use.
        num_replicas: Number of replicas.
        num_each: Number of GPUs that a replica needs.

    Raises:
        CapacityError: There are too few.
    """
    needed = num_replicas * num_each
    if needed > len(devices):
        fitting = len(devices) // num_each
        advice = f"set data_parallel_size to at most {fitting}" if fitting else "no replica fits"
        raise CapacityError(
            f"{num_replicas} replicas (data_parallel_size) of {num_each} GPU(s) each need {needed} "
            f"GPUs, and {len(devices)} can be used; {advice}"
        )
    groups = (devices[index * num_each : (index + 1) * num_each] for index in range(num_replicas))
    return [{VARIABLE: ",".join(group)} for group in groups]
