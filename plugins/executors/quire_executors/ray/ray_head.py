"""Whether Ray's head still answers, asked without Ray."""

import socket
import time

NUM_TRIES = 3  # so that a head that is busy for a moment is not taken for one that is gone
TIMEOUT_S = 2.0  # of each try
PAUSE_S = 0.2


def is_reachable(address: str) -> bool:
    """Return whether something accepts connections at the address of Ray's head."""
    host, _, port = address.rpartition(":")
    for attempt in range(NUM_TRIES):
        if attempt:
            time.sleep(PAUSE_S)
        try:
            socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S).close()
        except OSError:
            continue
        return True
    return False
