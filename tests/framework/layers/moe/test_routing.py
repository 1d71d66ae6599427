"""Options of a router that contradict each other are refused."""

import pytest

from quire.errors import UnsupportedModelError
from quire.layers import Routing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "softplus"}, "softplus"),
        ({"group_score": "min", "num_groups": 2}, "min"),
        ({"top_k": 9}, "9 experts, because it chooses from 8"),
        ({"top_k": 0}, "0 experts"),
        ({"num_groups": 4, "top_groups": 1, "top_k": 3}, "chooses from 2"),
        ({"num_groups": 3}, "3 groups"),
        ({"num_experts": 16_385}, "16385 experts; quire supports 16384"),
        ({"num_groups": 4, "top_groups": 5}, "uses 5"),
        ({"num_groups": 8, "top_groups": 8, "group_score": "top2"}, "no two best"),
        ({"num_groups": 4, "top_groups": 2, "score": "sparsemixer"}, "no groups"),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(UnsupportedModelError, match=message):
        Routing(**{"num_experts": 8, "top_k": 2, **options})
