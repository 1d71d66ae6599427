"""A core has one caller at a time, also within a thread, and none once it is dead."""

import os
import threading
import time
import warnings

import pytest
from engine_parts import make_message
from scripted_core import Reply, Running, ScriptedCore, echo

from quire.errors import AdapterError, EngineDeadError, InvalidRequestError
from quire.frontend.dispatch import shared_core as shared_core_module
from quire.frontend.dispatch.shared_core import SharedCore
from quire.frontend.offline_frontend import OfflineFrontend
from quire.messages import ResetPrefixCache
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams

WHOLE = SamplingParams(max_tokens=None)
SOURCE = Source("curious", "curious-plugin", "1")


def with_hook(core, tokenizer, intake, act):
    """A frontend with a plugin that acts on it when a request is finished."""
    errors = []

    def hook(request, output):
        try:
            act(frontend)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            errors.append(error)

    frontend = OfflineFrontend(core, tokenizer, intake, finished_hooks=[(SOURCE, hook)])
    return frontend, errors


def test_a_step_that_raises_is_a_typed_error_then_and_ever_after(tokenizer, intake):
    cause = RuntimeError("out of smoke")
    core = ScriptedCore(lambda request: Reply(request.token_ids[:1], cause))
    frontend = OfflineFrontend(core, tokenizer, intake)
    with pytest.raises(EngineDeadError, match="RuntimeError: out of smoke") as caught:
        frontend.generate(["the fox", "dog"], WHOLE)
    assert caught.value.__cause__ is cause
    num_steps = core.num_steps
    core.script = echo
    for call in (
        lambda: frontend.generate(["fox"], WHOLE),
        frontend.core.stats,
        lambda: frontend.core.control(ResetPrefixCache()),
    ):
        with pytest.raises(EngineDeadError, match="out of smoke"):
            call()
    assert (core.num_steps, core.controls) == (num_steps, [])
    frontend.core.close()
    assert core.is_shut_down


def test_a_plugin_cannot_call_the_engine_that_waits_for_it(tokenizer, intake):
    core = ScriptedCore(echo)
    again = lambda frontend: frontend.generate(["dog"], WHOLE)  # noqa: E731
    frontend, errors = with_hook(core, tokenizer, intake, again)
    assert frontend.generate(["fox"], WHOLE)[0].outputs[0].text == "fox"
    assert [type(error) for error in errors] == [InvalidRequestError]


def test_a_close_from_inside_a_call_ends_it_before_the_core_goes(tokenizer, intake):
    core = ScriptedCore(echo)
    was_shut_down = []

    def close(frontend):
        frontend.core.close()
        was_shut_down.append(core.is_shut_down)

    frontend, errors = with_hook(core, tokenizer, intake, close)
    with pytest.raises(EngineDeadError, match="closed"):
        frontend.generate(["fox", "the lazy dog"], WHOLE)
    assert (was_shut_down, core.is_shut_down, errors) == ([False], True, [])
    assert not core.has_work()


def test_a_fork_does_not_wait_for_a_thread_that_it_does_not_have(tokenizer, intake):
    core = ScriptedCore(echo, step_s=0.1)
    frontend = OfflineFrontend(core, tokenizer, intake)
    caller = threading.Thread(target=frontend.generate, args=(["the lazy dog"], WHOLE))
    caller.start()
    deadline = time.monotonic() + 5
    while core.num_steps == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert caller.is_alive()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        frontend.core.close()
        os._exit(7)
    deadline = time.monotonic() + 5
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(child, 9)
        os.waitpid(child, 0)
    caller.join(10)
    assert os.waitstatus_to_exitcode(ended[1]) == 7
    assert not core.is_shut_down


class Noted(ScriptedCore):
    """A core that notes what is done to it, and may hang in a step until it is killed."""

    def __init__(self, is_remote=False):
        super().__init__(echo)
        self.done = []
        self.is_remote = is_remote
        self.released = threading.Event()

    def wake(self):
        self.done.append("wake")

    def kill(self):
        self.done.append("kill")
        if self.is_remote:
            self.released.set()
        return self.is_remote

    def shutdown(self):
        self.done.append("shutdown")
        super().shutdown()


@pytest.fixture
def held():
    """A core that another thread holds, and a function that lets it step twice."""
    shared = SharedCore(core := ScriptedCore(echo))
    has_turn, may_step, has_stepped, is_over = (threading.Event() for _ in range(4))

    def hold():
        with shared.turn():
            has_turn.set()
            may_step.wait(10)
            core.running["x"] = Running(make_message("x", max_tokens=9), Reply([1]))
            shared.step()
            core.running["y"] = Running(make_message("y", max_tokens=9), Reply([1]))
            shared.step()
            has_stepped.set()
            is_over.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    has_turn.wait(10)

    def step():
        may_step.set()
        has_stepped.wait(10)

    yield shared, step
    is_over.set()
    may_step.set()
    holder.join(10)


def test_while_another_thread_has_the_core_the_statistics_are_those_of_its_last_step(
    held, monkeypatch
):
    monkeypatch.setattr(shared_core_module, "CLOSE_WAIT_S", 0.02)
    shared, step = held
    step()
    assert shared.stats().num_running == 2
    shared.close()
    shared.close_soon = shared._is_closed = True
    with pytest.raises(EngineDeadError, match="closed"):
        shared.stats()


def test_before_any_step_statistics_wait_for_one(held):
    shared, step = held
    found = []
    asker = threading.Thread(target=lambda: found.append(shared.stats()))
    asker.start()
    asker.join(3 * shared_core_module.STATS_WAIT_S)
    assert not found
    step()
    asker.join(10)
    assert found[0].num_running in (1, 2)


def test_an_idle_core_is_woken_and_shut_down():
    shared = SharedCore(core := Noted())
    shared.close()
    assert core.done == ["wake", "shutdown"]
    shared.close()  # twice is no harm
    with pytest.raises(EngineDeadError, match="closed"), shared.turn():
        pass


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_hanging_core_is_killed_or_shut_down_after_its_step(monkeypatch, is_remote):
    monkeypatch.setattr(shared_core_module, "CLOSE_WAIT_S", 0.5 if is_remote else 0.02)
    shared = SharedCore(core := Noted(is_remote))
    has_turn = threading.Event()

    def hold():
        with shared.turn():
            has_turn.set()
            core.released.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert has_turn.wait(5)
    shared.close()
    assert core.done[:2] == ["wake", "kill"]
    assert core.is_shut_down is is_remote
    core.released.set()
    holder.join(5)
    assert core.is_shut_down


def test_a_turn_ends_also_by_an_error_and_others_have_theirs():
    shared = SharedCore(Noted())
    with pytest.raises(KeyError), shared.turn():
        raise KeyError("x")
    with shared.turn() as core:
        assert core is shared
        with pytest.raises(InvalidRequestError, match="within one of its own calls"), shared.turn():
            pass
        for call in (shared.stats, lambda: shared.control(ResetPrefixCache())):
            with pytest.raises(InvalidRequestError, match="within one of its own calls"):
                call()
    with shared.turn():
        pass


@pytest.mark.parametrize("error", [EngineDeadError("gone"), RuntimeError("out of smoke")])
def test_a_dead_core_is_not_called(error):
    shared = SharedCore(core := Noted())
    core.control_error = error
    with pytest.raises(EngineDeadError) as caught:
        shared.control(ResetPrefixCache())
    assert caught.value is error or caught.value.__cause__ is error
    core.control_error = None
    calls = [
        lambda: shared.control(ResetPrefixCache()),
        shared.step,
        shared.stats,
        lambda: shared.add(None),
    ]
    for call in calls:
        with pytest.raises(EngineDeadError, match=str(error)):
            call()
    core.abort = lambda request_ids: core.done.append("abort")
    shared.abort(["x"])
    assert (len(core.controls), core.num_steps, core.done) == (1, 0, [])
    with pytest.raises(EngineDeadError), shared.turn():
        pass


def test_an_error_of_ours_is_no_death():
    shared = SharedCore(core := Noted())
    core.control_error = AdapterError("no such files")
    for _ in range(2):
        with pytest.raises(AdapterError):
            shared.control(ResetPrefixCache())
    core.abort = lambda request_ids: core.done.append(request_ids)
    shared.abort(["x"])
    assert core.done == [["x"]]


def test_what_was_closed_during_a_call_goes_with_it():
    shared = SharedCore(core := Noted())
    with shared.turn():
        shared.close()
        assert not core.is_shut_down
        with pytest.raises(EngineDeadError, match="closed"):
            shared.step()
    assert core.done == ["wake", "shutdown"]
