from itertools import pairwise

import pytest
import torch

from quire.worker.graph_capture import RepeatedRuns, graph_sizes, step_capture


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 16, 17, 100, 256, 384, 400, 512, 1024])
def test_less_than_a_third_of_a_large_step_is_padding(largest):
    sizes = graph_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, largest)
    for smaller, size in pairwise(sizes):
        num_padding_rows = size - smaller - 1
        assert size <= 16 or num_padding_rows < size / 3
    assert len(sizes) <= 17


def test_the_usual_sizes():
    assert graph_sizes(256) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert len(graph_sizes(512)) == 15


def test_a_device_without_graphs_runs_again():
    buffer = torch.zeros(2)

    def run():
        buffer.add_(1)
        return buffer

    way = step_capture(torch.device("cpu"))
    assert isinstance(way, RepeatedRuns)
    repeat = way.capture(run)
    way.finish()
    assert repeat() is buffer
    assert repeat().tolist() == [2, 2]
