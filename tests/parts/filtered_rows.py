"""Rows of logits with the filters of their requests, for property tests of a draw."""

import math

from hypothesis import strategies as st

from quire_samplers.filters.min_p import MinP
from quire_samplers.filters.top_k_top_p import TopKTopP
from quire_samplers.temperatures.temperature import Temperature

PLAIN = st.floats(-30, 30, width=32)
SPECIAL = st.sampled_from([-math.inf, 0.0, -0.0, 1.0, 1.0, 2.5, 1e-40, -1e-40, 3e38, -3e38, 1e30])
FIELDS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.0, 1.7]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 3, 5, 10, 1000]),
        "top_p": st.sampled_from([0.0, 0.1, 0.3, 0.77, 0.95, 1.0, 1.0]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0]),
    }
)
ROWS = st.integers(1, 40).flatmap(
    lambda size: st.lists(
        st.tuples(st.lists(PLAIN | SPECIAL, min_size=size, max_size=size), FIELDS),
        min_size=1,
        max_size=4,
    )
)


def after_steps(logits, rows):
    """What the steps that a draw can absorb leave of logits, on their device."""
    logits = logits.clone()
    for step in (Temperature, MinP, TopKTopP):
        logits = step(logits.shape[1], logits.device).apply(logits, rows)
    return logits


def is_on_the_edge(row, fields):
    """Whether rounding decides what top-p keeps in this row."""
    ranked = (row.double() / (fields["temperature"] or 1.0)).sort(descending=True).values
    if fields["min_p"]:
        ranked = ranked[ranked >= ranked[0] + math.log(fields["min_p"])]
    if 0 < fields["top_k"] < len(row):
        ranked = ranked[: fields["top_k"]]
    sums = ranked.softmax(0).cumsum(0)
    return bool((sums - fields["top_p"]).abs().min() < 1e-5)
