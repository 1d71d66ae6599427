"""The suite takes the processes that a machine has cores and memory for."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "processes.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("suite_processes", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("num_cpus", "free_gib", "expected"),
    [(2, 20, 2), (2, 5.9, 1), (2, 6, 2), (16, 7, 2), (1, 64, 1), (1.5, 64, 1), (0.5, 1, 1)],
)
def test_cores_and_memory_limit_the_processes_of_the_suite(script, num_cpus, free_gib, expected):
    assert script.num_processes(num_cpus, free_gib * 2**30) == expected


def test_a_large_machine_does_not_get_a_process_for_each_core(script):
    assert script.num_processes(96, 2**40) == script.MAX_PROCESSES
