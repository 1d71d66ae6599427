"""When a client shall try again: `Retry-After` and `retry-after-ms`, from a measured wait.

OpenAI's clients read both, the second first, and do not retry at all after more than 120 seconds.
"""

import math
from collections.abc import Sequence

RETRY_AFTER_S = 1  # while nothing is measured
MAX_RETRY_AFTER_S = 60

Headers = Sequence[tuple[bytes, bytes]]


def retry_headers(wait_s: float) -> dict[str, str]:
    """Return the headers of a 503.

    Args:
        wait_s: Seconds after which to try again; 0: unknown.
    """
    if wait_s <= 0:
        return {"retry-after": str(RETRY_AFTER_S)}
    wait_s = min(wait_s, MAX_RETRY_AFTER_S)
    seconds, milliseconds = max(1, math.ceil(wait_s)), math.ceil(wait_s * 1000)
    return {"retry-after": str(seconds), "retry-after-ms": str(milliseconds)}


def with_measured_wait(headers: Headers, wait_s: float) -> list[tuple[bytes, bytes]]:
    """Return headers with the measured wait in place of a `Retry-After` that is the default.

    Args:
        headers: Headers of a response, with names in small letters.
        wait_s: Seconds that a request sent now would wait; 0: unknown, or none.
    """
    names = [name for name, _ in headers]
    if wait_s <= 0 or b"retry-after" not in names or b"retry-after-ms" in names:
        return list(headers)
    measured = [(name.encode(), value.encode()) for name, value in retry_headers(wait_s).items()]
    return [*(pair for pair in headers if pair[0] != b"retry-after"), *measured]
