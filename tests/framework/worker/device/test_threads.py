"""Threads are as many as cores, and no more than were allowed."""

import pytest
import torch

from quire import LLM
from quire.machine.cores import usable_cores
from quire.testing.checkpoints import write_checkpoint
from quire.worker.device.threads import TorchThreads, thread_count

CORES = (4, "one per physical core")


@pytest.mark.parametrize(
    ("wanted", "num_ranks", "preset", "count", "why"),
    [
        (None, 1, 8, 4, "one per physical core"),  # torch counts hyperthreads
        (None, 1, 4, 4, "one per physical core"),
        (None, 1, 1, 1, "set for torch by OMP_NUM_THREADS or the program"),
        (None, 2, 8, 2, "shared by 2 workers"),
        (None, 8, 8, 1, "shared by 8 workers"),
        (6, 1, 8, 6, "--threads"),
        (6, 2, 1, 6, "--threads"),
    ],
)
def test_threads_are_as_many_as_fit(wanted, num_ranks, preset, count, why):
    number, reason = thread_count(wanted, num_ranks, preset, CORES)
    assert number == count
    assert why in reason


@pytest.fixture
def threads():
    """What a process that has built no engine yet has."""
    before = torch.get_num_threads()
    yield TorchThreads()
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("wanted", "line"), [(1, "1 CPU thread: --threads"), (2, "2 CPU threads: --threads")]
)
def test_the_threads_of_torch_are_set_and_logged(threads, wanted, line, caplog):
    caplog.set_level("INFO")
    threads.use(wanted, 1)
    assert torch.get_num_threads() == wanted
    assert caplog.messages == [line]


def test_the_default_is_a_thread_per_core_and_no_more_than_allowed(threads):
    cores, _ = usable_cores()
    torch.set_num_threads(cores + 3)
    threads.use(None, 1)
    assert torch.get_num_threads() == cores
    torch.set_num_threads(1)
    threads.use(None, 1)
    assert torch.get_num_threads() == 1


def test_the_threads_of_one_engine_do_not_bind_the_next(threads, monkeypatch):
    monkeypatch.setattr("quire.worker.device.threads.usable_cores", lambda: CORES)
    torch.set_num_threads(8)
    threads.use(1, 1)
    threads.use(None, 2)
    assert torch.get_num_threads() == 2
    threads.use(None, 1)
    assert torch.get_num_threads() == 4


def test_two_engines_in_a_row_each_have_their_own_threads(threads, tmp_path, monkeypatch):
    monkeypatch.setattr("quire.worker.device.threads.usable_cores", lambda: CORES)
    monkeypatch.setattr("quire.worker.worker.THREADS", threads)
    folder = write_checkpoint(tmp_path, "Qwen3ForCausalLM").folder
    torch.set_num_threads(3)
    found = []
    for wanted in (1, None):
        with LLM(str(folder), max_model_len=32, threads=wanted, kernels="torch"):
            found.append(torch.get_num_threads())
    assert found == [1, 3]
