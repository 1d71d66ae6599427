"""Ranks go to nodes with room, groups stay together, and a lack is listed node by node."""

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quire.errors import CapacityError
from quire.worker.device.threads import thread_count
from quire_executors.ray.ray_placement import NodeResources, place_on_cpus, place_on_gpus


def node(name, free, total=None):
    return NodeResources(name, name, f"10.0.0.{ord(name[-1])}", total or free, free)


def names(placement):
    return "".join(found.name for found in placement.nodes)


@st.composite
def clusters(draw):
    frees = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    return [node(chr(ord("A") + i), float(free), 9.0) for i, free in enumerate(frees)]


@given(clusters(), st.integers(1, 24), st.sampled_from([1, 2, 4]))
def test_every_rank_has_a_gpu_of_its_own(nodes, num_ranks, tp_size):
    assume(sum(each.free for each in nodes) >= num_ranks)
    placement = place_on_gpus(nodes, num_ranks, tp_size, "A")
    taken = Counter(found.name for found in placement.nodes)
    assert taken.total() == num_ranks
    assert all(taken[each.name] <= each.free for each in nodes)


@given(clusters(), st.integers(1, 4), st.sampled_from([2, 4]))
def test_a_group_is_divided_only_if_no_node_has_room_for_it(nodes, num_groups, tp_size):
    assume(sum(int(each.free) // tp_size for each in nodes) >= num_groups)
    placed = names(place_on_gpus(nodes, num_groups * tp_size, tp_size, "A"))
    groups = [placed[i : i + tp_size] for i in range(0, len(placed), tp_size)]
    assert all(len(set(group)) == 1 for group in groups)


def test_the_first_ranks_are_on_the_engines_node():
    nodes = [node("A", 4), node("B", 2), node("C", 4)]
    assert names(place_on_gpus(nodes, 4, 2, "B")) == "BBAA"
    assert names(place_on_gpus(nodes, 4, 4, "B")) == "AAAA"


def test_a_group_that_fits_nowhere_begins_where_most_fit():
    assert names(place_on_gpus([node("A", 1), node("B", 3)], 4, 4, "A")) == "BBBA"


def test_a_lack_of_gpus_names_what_each_node_has():
    nodes = [node("nodeA", 8, 8), node("nodeB", 0, 4)]
    with pytest.raises(CapacityError) as caught:
        place_on_gpus(nodes, 16, 8, "nodeA")
    assert str(caught.value).startswith(
        "the model needs 16 GPUs in the Ray cluster, 8 are free: nodeA 8 of 8, nodeB 0 of 4; "
    )


def test_a_cluster_without_nodes_is_said_to_have_none():
    with pytest.raises(CapacityError, match=r"needs 1 GPU in .* 0 are free: no node is alive;"):
        place_on_gpus([], 1, 1, "A")


def test_a_part_of_a_gpu_is_no_gpu():
    with pytest.raises(CapacityError, match=r"1 is free: A 1.5 of 2"):
        place_on_gpus([node("A", 1.5, 2)], 2, 1, "A")


@given(clusters(), st.integers(1, 12))
def test_ranks_get_as_many_cpus_as_all_can_have(nodes, num_ranks):
    assume(sum(each.free for each in nodes) >= num_ranks)
    placement = place_on_cpus(nodes, num_ranks, 1, "A", None)
    assert sum(each.room(placement.amount) for each in nodes) >= num_ranks
    assert sum(each.room(placement.amount + 1) for each in nodes) < num_ranks


def test_a_given_number_of_threads_is_reserved():
    placement = place_on_cpus([node("A", 4), node("B", 4)], 2, 1, "A", 3)
    assert (names(placement), placement.amount) == ("AB", 3)


def test_a_lack_of_cpus_names_those_of_each_rank():
    with pytest.raises(CapacityError, match=r"needs 6 CPUs, 3 for each of 2 ranks, .* 5 are free"):
        place_on_cpus([node("A", 5)], 2, 1, "A", 3)


@pytest.mark.parametrize("num_cores", [64, 20, 16])
def test_each_rank_has_as_many_threads_as_it_reserves_however_many_cores_its_node_has(num_cores):
    placement = place_on_cpus([node("A", 16), node("B", 8)], 3, 1, "A", None)
    preset = int(placement.thread_limit["OMP_NUM_THREADS"])
    assert placement.amount == 8
    assert thread_count(None, 2, preset, (num_cores, "one per physical core"))[0] == 8
