"""The ranks of an agent: as given, or by the variables of a launcher."""

import pytest

from quire.errors import SettingsError
from quire.launch.workers.nodes.own_ranks import INDEX_VARIABLES, own_ranks


def test_the_rank_is_the_one_that_is_given():
    assert own_ranks(3, 1, {"RANK": "7"}) == range(3, 4)
    assert own_ranks(0, 1, {}) == range(1)


def test_several_ranks_follow_the_first_one():
    assert own_ranks(8, 4, {}) == range(8, 12)


@pytest.mark.parametrize("variable", INDEX_VARIABLES)
def test_a_launcher_says_the_rank(variable):
    assert own_ranks(None, 1, {variable: "5"}) == range(5, 6)


def test_a_launcher_of_one_process_a_machine_says_the_index_of_the_machine():
    assert own_ranks(None, 8, {"LWS_WORKER_INDEX": "2"}) == range(16, 24)


@pytest.mark.parametrize("inner", ["RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"])
def test_a_launcher_in_a_job_of_slurm_is_believed(inner):
    assert own_ranks(None, 1, {"SLURM_PROCID": "0", inner: "3"}) == range(3, 4)


@pytest.mark.parametrize(
    ("first", "count", "environment", "message"),
    [
        (None, 1, {}, "give --rank, or start the process by a launcher that sets one of RANK, "),
        (None, 1, {"RANK": ""}, "the rank is not known"),
        (None, 1, {"SLURM_PROCID": "-1"}, "SLURM_PROCID of SLURM is no number: '-1'"),
        (0, 0, {}, "--count must be at least 1, got 0"),
        (-1, 1, {}, "--rank must be at least 0, got -1"),
    ],
)
def test_what_gives_no_rank_is_refused(first, count, environment, message):
    with pytest.raises(SettingsError, match=message):
        own_ranks(first, count, environment)
