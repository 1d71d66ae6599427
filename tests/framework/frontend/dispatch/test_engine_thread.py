"""One thread owns the core: its commands, its steps, its death, and waiting for its end."""

import atexit
import threading
import time

import pytest
from processes import WAIT_S
from scripted_core import ScriptedCore, echo

from quire.errors import EngineDeadError
from quire.frontend.dispatch import engine_thread as engine_thread_module
from quire.frontend.dispatch.engine_client import death_by
from quire.frontend.dispatch.engine_thread import EngineThread
from quire.sampling_params import SamplingParams


class Noted(ScriptedCore):
    """A core that notes when it is woken and killed, and may hang, be remote, or end badly."""

    def __init__(self, is_remote=False, **options):
        super().__init__(echo, **options)
        self.num_wakes = 0
        self.num_kills = 0
        self.is_remote = is_remote
        self.shutdown_error = None
        self.released = threading.Event()
        self.hangs = False

    def wake(self):
        self.num_wakes += 1

    def kill(self):
        self.num_kills += 1
        if self.is_remote:
            self.released.set()
        return self.is_remote

    def step(self):
        if self.hangs:
            self.released.wait(10)
            return None
        return super().step()

    def shutdown(self):
        super().shutdown()
        if self.shutdown_error is not None:
            raise self.shutdown_error


class Case:
    def __init__(self, core):
        self.core = core
        self.outputs = []
        self.deaths = []
        self.thread = EngineThread(core, self.outputs.append, self.deaths.append)
        self.thread.start()


@pytest.fixture
def start(wait_for):
    cases = []

    def make(core=None):
        cases.append(Case(core or Noted()))
        return cases[-1]

    yield make
    for case in cases:
        case.core.released.set()
        case.thread.stop()
        assert wait_for(lambda case=case: case.core.is_shut_down)


@pytest.fixture
def wait_for():
    def wait(condition, timeout_s=WAIT_S):
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    return wait


@pytest.fixture
def request_of(intake):
    return lambda text="the fox": intake.admit(text, SamplingParams(max_tokens=None)).requests[0]


def test_a_command_wakes_an_idle_engine_and_is_done_once(start, wait_for, monkeypatch):
    monkeypatch.setattr(engine_thread_module, "HEALTH_INTERVAL_S", 60.0)
    case = start()
    assert wait_for(lambda: case.thread._wake._waiters)
    done = []
    case.thread.post(lambda core: done.append(core))
    assert wait_for(lambda: done)
    case.thread.post(lambda core: done.append("again"))
    assert wait_for(lambda: len(done) == 2)
    assert done == [case.core, "again"]
    assert case.core.num_wakes == 2  # a step that runs elsewhere would have returned


def test_steps_are_run_as_long_as_there_is_work(start, wait_for, request_of):
    case = start()
    case.thread.post(lambda core: core.add(request_of()))
    assert wait_for(lambda: case.outputs and case.outputs[-1].outputs[0].finish_reason)
    num_steps = case.core.num_steps
    assert len(case.outputs) == num_steps
    assert wait_for(lambda: case.thread.stalled_s == 0.0)
    time.sleep(0.02)
    assert case.core.num_steps == num_steps


def test_a_step_without_outputs_is_not_reported(start, wait_for, request_of):
    case = start()
    case.core.hangs = True
    case.core.released.set()  # its steps return None
    case.thread.post(lambda core: core.add(request_of()))
    time.sleep(0.03)
    assert case.outputs == []
    assert case.thread.death is None
    case.core.hangs = False
    assert wait_for(lambda: case.outputs)


def test_time_since_the_last_step_counts_while_there_is_work(start, wait_for, request_of):
    case = start()
    assert case.thread.stalled_s == 0.0
    case.core.hangs = True
    case.thread.post(lambda core: core.add(request_of()))
    assert wait_for(lambda: case.thread.stalled_s > 0.05)
    case.core.hangs = False
    case.core.released.set()
    assert wait_for(lambda: case.thread.stalled_s == 0.0)


def test_steps_that_say_nothing_do_not_end_a_stall(start, wait_for, request_of):
    case = start()
    case.core.hangs = True
    case.core.released.set()  # its steps return None at once, again and again
    case.thread.post(lambda core: core.add(request_of()))
    assert wait_for(lambda: case.thread.stalled_s > 0.05)
    case.core.hangs = False
    assert wait_for(lambda: case.thread.stalled_s == 0.0)


def test_many_steps_are_no_stall(start, wait_for, request_of):
    case = start(Noted(step_s=0.03))
    began_s = time.monotonic()
    case.thread.post(lambda core: core.add(request_of("the lazy dog jumps over the fox")))
    assert wait_for(lambda: len(case.outputs) > 4)
    assert case.thread.stalled_s < time.monotonic() - began_s - 0.1


def test_a_step_that_fails_is_a_death_that_is_reported_once(start, wait_for, request_of, caplog):
    case = start()
    case.core.script = lambda request: (_ for _ in ()).throw(RuntimeError("out of smoke"))
    case.thread.post(lambda core: core.add(request_of()))
    assert wait_for(lambda: case.core.is_shut_down)
    assert [str(death) for death in case.deaths] == ["the engine died: RuntimeError: out of smoke"]
    assert case.thread.death is case.deaths[0]
    assert isinstance(case.deaths[0].__cause__, RuntimeError)
    assert "the engine died" in caplog.text
    with pytest.raises(EngineDeadError, match="out of smoke") as caught:
        case.thread.post(print)
    assert caught.value.__cause__ is case.deaths[0]
    case.thread.stop()
    assert len(case.deaths) == 1


def test_an_idle_engine_that_dies_is_seen(start, wait_for, monkeypatch):
    monkeypatch.setattr(engine_thread_module, "HEALTH_INTERVAL_S", 0.01)
    case = start()
    case.core.is_dead = True
    assert wait_for(lambda: case.deaths)
    assert str(case.deaths[0]) == "it died in its sleep"


def test_stopping_ends_the_thread_and_is_no_death_in_the_log(start, caplog):
    case = start()
    num_wakes = case.core.num_wakes
    case.thread.stop()
    assert not case.thread._thread.is_alive()
    assert case.core.is_shut_down
    assert case.core.num_wakes == num_wakes + 1
    assert [str(death) for death in case.deaths] == ["the engine was shut down"]
    assert "died" not in caplog.text
    case.thread.stop()
    assert len(case.deaths) == 1


def test_in_a_fork_nothing_is_queued_for_the_thread_that_stayed_behind(start, monkeypatch):
    case = start()
    monkeypatch.setattr(engine_thread_module.os, "getpid", lambda: -1)
    with pytest.raises(EngineDeadError, match="cannot be used in its forks"):
        case.thread.post(print)
    monkeypatch.undo()
    assert case.thread.death is None


def test_stopping_does_not_wait_for_what_there_is_to_do(start, request_of):
    case = start(Noted(step_s=0.01))
    case.thread.post(lambda core: core.add(request_of("the lazy dog jumps over the fox")))
    case.thread.stop()
    assert not case.thread._thread.is_alive()
    assert case.core.has_work()


def test_an_idle_engine_stops_at_once(start, monkeypatch, wait_for):
    monkeypatch.setattr(engine_thread_module, "HEALTH_INTERVAL_S", 60.0)
    case = start()
    assert wait_for(lambda: case.thread._wake._waiters)
    case.thread.stop_soon()
    assert wait_for(lambda: case.core.is_shut_down)


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_step_that_hangs_is_killed_or_left_behind(start, wait_for, request_of, is_remote):
    case = start(Noted(is_remote))
    case.core.hangs = True
    case.thread.post(lambda core: core.add(request_of()))
    assert wait_for(lambda: case.thread.stalled_s > 0)
    case.thread.stop(0.05)
    assert [str(death) for death in case.deaths] == [
        "the engine was shut down; its last step hung for 0.05 s"
    ]
    assert case.core.num_kills == 1
    assert case.thread._thread.is_alive() is not is_remote
    started = time.monotonic()
    case.thread.stop(6.0)
    assert time.monotonic() - started < 4.0  # it is not waited for again
    assert case.core.num_kills == 1
    assert len(case.deaths) == 1


def test_a_core_that_does_not_shut_down_cleanly_is_a_line_in_the_log(start, caplog):
    case = start()
    case.core.shutdown_error = OSError("the socket is gone")
    case.thread.stop()
    assert "failed while shutting down" in caplog.text
    assert "the socket is gone" in caplog.text


def test_stopping_from_inside_does_not_wait(start, wait_for):
    case = start()
    case.thread.post(lambda core: case.thread.stop())
    assert wait_for(lambda: case.core.is_shut_down)


def test_a_program_that_leaves_stops_the_engines_that_run(monkeypatch, intake):
    known = []
    monkeypatch.setattr(atexit, "register", known.append)
    monkeypatch.setattr(atexit, "unregister", known.remove)
    case = Case(Noted())
    assert known == [case.thread.stop]
    case.thread.stop()
    assert known == []


def test_a_death_by_a_death_is_that_death():
    death = EngineDeadError("gone")
    assert death_by(death) is death
    cause = KeyError("x")
    found = death_by(cause)
    assert str(found) == "the engine died: KeyError: 'x'"
    assert found.__cause__ is cause


def test_a_step_that_is_killed_at_the_end_is_no_second_death(start, wait_for, request_of, caplog):
    class Killed(Noted):
        def step(self):
            self.released.wait(10)
            raise RuntimeError("the process was killed")

    case = start(Killed(is_remote=True))
    case.thread.post(lambda core: core.add(request_of()))
    assert wait_for(lambda: case.thread.stalled_s > 0)
    case.thread.stop(0.02)
    assert wait_for(lambda: case.core.is_shut_down)
    assert [str(death) for death in case.deaths] == [
        "the engine was shut down; its last step hung for 0.02 s"
    ]
    assert "the engine died" not in caplog.text
