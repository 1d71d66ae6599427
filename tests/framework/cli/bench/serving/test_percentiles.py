"""Percentiles as NumPy computes them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.bench.serving.percentiles import percentile

SAMPLES = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=50).map(sorted)


@given(SAMPLES, st.sampled_from([0, 1, 50, 90, 99, 100]))
def test_a_percentile_is_numpys(samples, percent):
    assert percentile(samples, percent) == pytest.approx(np.percentile(samples, percent))
