"""A core in another process: what is sent, what is dropped, and how its death is reported."""

import contextlib
import os
import pickle
import threading
import time

import msgspec
import pytest
from engine_parts import make_core, make_message
from processes import WAIT_S, is_running
from scripted_core import Reply, ScriptedCore, counting
from served_core import serve_core

from quire.errors import (
    AdapterError,
    CapacityError,
    EngineDeadError,
    InvalidRequestError,
    QuireError,
)
from quire.launch.engine_process.engine_link import EngineLink
from quire.launch.engine_process.engine_wire import Connected, FromEngine, ToEngine
from quire.launch.engine_process.remote_core import RemoteCore
from quire.messages import AdapterRef, ErrorReport, LoadAdapter, ResetPrefixCache
from quire.process.children.child_process import ChildProcess
from quire.process.local.channel import Channel


@pytest.fixture
def start(tmp_path_factory):
    started = []

    def serve(core):
        started.append(serve_core(core, tmp_path_factory.mktemp("s")))
        return started[-1][0]

    yield serve
    for core, thread in started:
        core.shutdown()
        thread.join()


def slow(step_s=0.05, script=counting, **options):
    return ScriptedCore(script, step_s=step_s, **options)


def finish(core, max_steps=1000):
    outputs = {}
    for _ in range(max_steps):
        if not core.has_work():
            return outputs
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("still busy")


def keep_checking(core):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        core.check_health()
        time.sleep(0.01)


def test_requests_that_were_added_together_are_in_one_step(start):
    core = start(make_core()[0])
    for number in range(40):
        core.add(make_message(str(number), max_tokens=2))
    steps = [core.step().outputs, core.step().outputs]
    assert [len(outputs) for outputs in steps] == [40, 40]


def test_an_id_that_is_in_use_is_refused_and_free_again_afterwards(start):
    core = start(make_core()[0])
    core.add(make_message("a", max_tokens=1))
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        core.add(make_message("a"))
    assert len(finish(core)["a"]) == 1
    core.add(make_message("a", prompt=[40], max_tokens=2))
    assert [output.token_ids for output in finish(core)["a"]] == [[41], [42]]


def test_what_was_said_of_an_aborted_request_is_not_said_of_the_next_one_of_its_name(start):
    core = start(slow(step_s=0.001))
    core.add(make_message("a", prompt=[100], max_tokens=50))
    core.step()
    time.sleep(0.1)  # its later tokens have arrived, and were not read
    core.abort(["a"])
    core.add(make_message("a", prompt=[500], max_tokens=3))
    assert [output.token_ids for output in finish(core)["a"]] == [[501], [502], [503]]


def test_a_request_that_cannot_be_sent_is_refused_like_any_other(start):
    core = start(make_core()[0])
    core.add(make_message("bad", prompt=[2**70]))
    core.add(make_message("good", max_tokens=1))
    outputs = finish(core)
    assert outputs["bad"][-1].finish_reason == "error"
    assert outputs["bad"][-1].error.code == InvalidRequestError.code
    assert outputs["good"][-1].token_ids == [13]


def test_a_request_aborted_before_it_was_sent_never_runs(start):
    scripted = slow(0.001)
    core = start(scripted)
    core.add(make_message("gone", max_tokens=1000))
    core.abort(["gone"])
    core.add(make_message("stays", max_tokens=2))
    assert list(finish(core)) == ["stays"]
    assert "gone" not in scripted.running
    assert "gone" not in scripted.waiting


def test_an_idle_engine_refuses_a_request_that_it_cannot_read(start):
    core = start(make_core()[0])
    core.add(make_message("bad", prompt=["x"]))
    assert finish(core)["bad"][-1].error.code == InvalidRequestError.code


def test_a_request_that_the_engine_cannot_read_fails_and_no_other_does(start):
    core = start(make_core()[0])
    core.add(make_message("bad", prompt=["x"]))
    core.add(make_message("good", max_tokens=1))
    outputs = finish(core)
    assert outputs["bad"][-1].error.code == InvalidRequestError.code
    assert "token_ids" in outputs["bad"][-1].error.message
    assert outputs["good"][-1].token_ids == [13]


def test_a_request_that_the_engine_refuses_has_the_code_of_its_error(start):
    class Refusing(ScriptedCore):
        def add(self, request):
            raise CapacityError("there is no room")

    core = start(Refusing(counting))
    core.add(make_message("a"))
    assert finish(core)["a"][-1].error == ErrorReport("out_of_capacity", "there is no room")


def test_the_errors_of_the_engine_come_out_of_step_as_they_are(start):
    script = lambda request: Reply([7], ErrorReport("invalid_grammar", "no such thing"))  # noqa: E731
    core = start(slow(0, script))
    core.add(make_message("a"))
    assert finish(core)["a"][-1].error == ErrorReport("invalid_grammar", "no such thing")


def test_controls_return_and_raise_as_in_the_engine_process(start):
    core = start(slow(0))
    assert core.control(ResetPrefixCache()) is None
    with pytest.raises(AdapterError, match="no files of 'ghost'"):
        core.control(LoadAdapter(AdapterRef("ghost", "nowhere")))
    core.check_health()


def test_a_reply_of_the_wrong_type_is_an_error_of_this_call_only(start):
    core = start(make_core()[0])  # its executor returns the command itself
    with pytest.raises(QuireError, match="a message cannot be decoded"):
        core.control(LoadAdapter(AdapterRef("a", "b")))
    assert core.stats().num_running == 0


def test_a_control_between_two_steps_loses_no_step(start):
    core = start(slow(0.005))
    core.add(make_message("a", prompt=[0], max_tokens=20))
    tokens = []
    while core.has_work():
        assert core.control(ResetPrefixCache()) is None
        tokens += [token for output in core.step().outputs for token in output.token_ids]
    assert tokens == list(range(1, 21))


def test_a_woken_step_returns_before_the_engine_has_sent_a_message(start):
    core = start(slow(step_s=1.0))
    core.add(make_message("a", max_tokens=1))
    threading.Timer(0.1, core.wake).start()
    started = time.monotonic()
    assert core.step() is None
    assert time.monotonic() - started < 0.9
    assert [output.token_ids for output in core.step().outputs] == [[13]]


def test_a_step_that_fails_over_there_ends_the_engine_with_its_message(start):
    def script(request):
        return Reply([1], RuntimeError("out of smoke"))

    core = start(slow(0, script))
    core.add(make_message("a"))
    with pytest.raises(EngineDeadError, match="RuntimeError: out of smoke"):
        finish(core)
    for verb in (
        core.step,
        core.stats,
        core.check_health,
        lambda: core.control(ResetPrefixCache()),
    ):
        with pytest.raises(EngineDeadError, match="out of smoke"):
            verb()
    core.abort(["a"])  # there is nothing left to abort, and that is no error
    core.wake()


def test_a_control_that_fails_ends_the_engine_with_the_words_that_a_thread_has_for_it(start):
    scripted = slow(0)
    core = start(scripted)
    scripted.control_error = RuntimeError("out of smoke")
    for verb in (lambda: core.control(ResetPrefixCache()), core.check_health):
        with pytest.raises(EngineDeadError, match=r"^the engine died: RuntimeError: out of smoke$"):
            verb()


def test_in_a_fork_every_verb_says_so_and_closing_does_nothing(start):
    core = start(slow(0))
    pid = os.fork()
    if pid == 0:
        refused = 0
        for verb in (
            core.step, core.stats, core.check_health,
            lambda: core.control(ResetPrefixCache()), lambda: core.add(make_message("a")),
        ):  # fmt: skip
            with contextlib.suppress(EngineDeadError):
                verb()
                break
            refused += 1
        core.abort(["a"])
        core.wake()
        core.kill()
        core.shutdown()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    core.add(make_message("a", max_tokens=2))
    assert len(finish(core)["a"]) == 2


def test_a_collected_core_closes_its_file_descriptors(tmp_path_factory):
    def start_and_forget():
        address = f"unix://{tmp_path_factory.mktemp('s')}/engine"
        child = ChildProcess(["-c", "import time; time.sleep(60)"], b"")
        core = RemoteCore(EngineLink(Channel(FromEngine, address, is_listening=True), child))
        core.wake()
        return child.pid

    start_and_forget()
    before = sorted(os.listdir("/proc/self/fd"))
    assert not is_running(start_and_forget())
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("verb", [RemoteCore.step, RemoteCore.stats])
def test_killing_the_process_ends_a_method_that_waits_for_it(tmp_path, verb):
    address = f"unix://{tmp_path}/engine"
    child = ChildProcess(["-c", "import time; time.sleep(60)"], b"")
    link = EngineLink(Channel(FromEngine, address, is_listening=True), child)
    deaf = Channel(ToEngine, address, is_listening=False)
    deaf.send(Connected())
    assert link.receive() == Connected()
    core = RemoteCore(link)
    core.add(make_message("a"))
    threading.Timer(0.2, core.kill).start()
    with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
        verb(core)
    core.shutdown()
    core.kill()
    deaf.close()


def test_an_engine_that_dies_while_it_is_idle_is_found_dead(start):
    scripted = slow(0)
    core = start(scripted)
    core.check_health()
    scripted.is_dead = True
    with pytest.raises(EngineDeadError, match="in its sleep"):
        keep_checking(core)


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1\xc1", pickle.dumps(make_message("a")), os.urandom(500)]
)
def test_garbage_from_the_parent_ends_the_engine_and_it_says_so(start, garbage):
    scripted = slow(0)
    core = start(scripted)
    core._link.channel.send(msgspec.Raw(garbage))
    with pytest.raises(EngineDeadError, match=f"{len(garbage)} bytes .* not a valid message"):
        keep_checking(core)
    assert scripted.is_shut_down


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1\xc1", pickle.dumps(make_message("a")), os.urandom(500)]
)
def test_garbage_from_the_engine_ends_it_and_every_verb_says_so(tmp_path_factory, garbage):
    scripted = slow(0)
    core, thread = serve_core(scripted, tmp_path_factory.mktemp("s"))
    scripted.step = lambda: thread.channel.send(msgspec.Raw(garbage))
    core.add(make_message("a", max_tokens=3))
    for _ in range(2):
        with pytest.raises(EngineDeadError, match=f"{len(garbage)} bytes .* not a valid message"):
            finish(core)
    core.shutdown()
    thread.die()
    thread.join()


def test_after_a_shutdown_every_verb_says_so(start):
    core = start(slow(0))
    core.shutdown()
    for verb in (core.stats, core.check_health):
        with pytest.raises(EngineDeadError, match="shut down"):
            verb()
    core.add(make_message("a"))
    with pytest.raises(EngineDeadError, match="shut down"):
        core.step()
    core.shutdown()
