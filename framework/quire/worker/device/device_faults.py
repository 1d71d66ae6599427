"""Device failures: a CUDA device that has failed also fails every later call."""

from quire.errors import EngineDeadError
from quire.worker.graphs.graph_capture import causes_of

# Prefixes of driver errors in torch and Triton; out-of-memory errors have other texts.
FAULTS = ("CUDA error", "Triton Error [CUDA]")


def end_if_device_failed(error: Exception) -> None:
    """Raise EngineDeadError if an error is a failure of the device and not of one part.

    Raises:
        EngineDeadError: The device failed; the message has the device's first error.
    """
    for cause in reversed(causes_of(error)):
        message = str(cause)
        if isinstance(cause, RuntimeError) and any(fault in message for fault in FAULTS):
            raise EngineDeadError(
                f"the device failed and is unusable for this process: {message}; restart the "
                "engine (CUDA_LAUNCH_BLOCKING=1 shows the kernel that failed)"
            ) from error
