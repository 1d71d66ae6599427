"""Sizes of launches that do not depend on a GPU."""

import torch

from quire_attention_backends.shared.launch_sizes import (
    CPU_PROGRAMS,
    next_power_of_two,
    num_programs,
)


def test_the_next_power_of_two_is_the_number_itself_if_it_is_one():
    found = [next_power_of_two(number) for number in (1, 2, 3, 4, 5, 80, 128, 129)]
    assert found == [1, 2, 4, 4, 8, 128, 128, 256]


def test_the_interpreter_has_as_many_programs_whatever_a_multiprocessor_runs():
    assert num_programs(torch.device("cpu"), 3) == num_programs(torch.device("cpu"), 8)
    assert num_programs(torch.device("cpu"), 3) == CPU_PROGRAMS
