"""When a client shall try again: `Retry-After` and `retry-after-ms`, from a measured wait.

OpenAI's clients read both, the second first, and do not retry at all after more than 120 seconds.
"""

import math
from collections.abc import Sequence

RETRY_AFTER_S = 1  # while nothing is measured
MAX_RETRY_AFTER_S = 60
NAME = b"retry-after"

Headers = Sequence[tuple[bytes, bytes]]


def with_measured_wait(headers: Headers, wait_s: float) -> list[tuple[bytes, bytes]]:
    """Return headers with the measured wait in place of a `Retry-After`, if they have one.

    Args:
        headers: Headers of a response, with names in small letters.
        wait_s: Seconds that a request sent now would wait; 0: unknown, or none.
    """
    if wait_s <= 0 or not any(name == NAME for name, _ in headers):
        return list(headers)
    wait_s = min(wait_s, MAX_RETRY_AFTER_S)
    measured = [
        (NAME, b"%d" % max(1, math.ceil(wait_s))),
        (b"retry-after-ms", b"%d" % math.ceil(wait_s * 1000)),
    ]
    return [*(pair for pair in headers if pair[0] != NAME), *measured]
