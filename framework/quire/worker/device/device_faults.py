"""A CUDA device that has failed fails every later call too: nothing may be tried again on it."""

from quire.errors import EngineDeadError
from quire.worker.graphs.graph_capture import causes_of

# As torch and Triton begin what the driver says; what asks for too much memory says it otherwise.
FAULTS = ("CUDA error", "Triton Error [CUDA]")


def end_if_device_failed(error: Exception) -> None:
    """Return if an error is a part's own, which may not happen again for other requests.

    Raises:
        EngineDeadError: The device failed; the message is the first that it gave.
    """
    for cause in reversed(causes_of(error)):
        message = str(cause)
        if isinstance(cause, RuntimeError) and any(fault in message for fault in FAULTS):
            raise EngineDeadError(
                f"the device failed, and computes nothing more for this process: {message}; "
                "start again (CUDA_LAUNCH_BLOCKING=1 shows what failed)"
            ) from error
