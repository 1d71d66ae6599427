"""Times at which the requests of a load are sent."""

import math
import random


def arrival_times(count: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """Return the seconds from the start of the load to each request.

    The gaps have a gamma distribution: with a burstiness of 1 the requests are a Poisson process,
    below 1 they come in bursts, above 1 more evenly. They are scaled so that the last request comes
    after exactly `count / rate` seconds, as in vLLM's benchmark, so all seeds offer the same rate.

    Args:
        count: Number of requests.
        rate: Requests per second; infinite: all at once.
        burstiness: Shape of the distribution.
        rng: Source of the gaps.
    """
    if math.isinf(rate):
        return [0.0] * count
    times, now = [], 0.0
    for _ in range(count):
        now += rng.gammavariate(burstiness, 1.0)
        times.append(now)
    scale = count / rate / now
    return [time * scale for time in times]
