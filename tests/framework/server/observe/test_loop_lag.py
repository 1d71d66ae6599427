"""A loop that is blocked shows it."""

import asyncio
import time

from quire.frontend.metrics.histogram import Histogram
from quire.server.observe.loop_lag import measure_loop_lag


def test_a_block_of_the_loop_is_observed():
    lag_s = Histogram((0.1,))

    async def main():
        measuring = asyncio.create_task(measure_loop_lag(lag_s, 0.01))
        await asyncio.sleep(0)
        time.sleep(0.3)
        await asyncio.sleep(0.05)
        measuring.cancel()

    asyncio.run(main())
    within, of_all = lag_s.cumulative_counts()
    assert of_all > within
    assert lag_s.total > 0.2
