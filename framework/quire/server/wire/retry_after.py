"""When a client shall try again: `Retry-After` and `retry-after-ms`, from a measured wait.

OpenAI's clients read both, the second first, and do not retry at all after more than 120 seconds.
"""

import math
from collections.abc import Sequence

RETRY_AFTER_S = 1  # while nothing is measured
MAX_RETRY_AFTER_S = 60

Header = tuple[bytes, bytes]


def retry_headers(wait_s: float = 0.0, most_s: float = MAX_RETRY_AFTER_S) -> dict[str, str]:
    """Return the headers of a 429 or a 503.

    Args:
        wait_s: Seconds after which to try again; 0: unknown.
        most_s: Seconds after which to try again at the latest, as an estimate may be wrong.
    """
    if wait_s <= 0:
        return {"retry-after": str(RETRY_AFTER_S)}
    wait_s = min(wait_s, most_s)
    seconds, milliseconds = max(1, math.ceil(wait_s)), math.ceil(wait_s * 1000)
    return {"retry-after": str(seconds), "retry-after-ms": str(milliseconds)}


def with_measured_wait(headers: Sequence[Header], wait_s: float) -> list[Header]:
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
