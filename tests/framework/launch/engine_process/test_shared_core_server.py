"""One engine for several front ends: each has its own requests, and none reaches another's."""

import itertools
import os
from contextlib import suppress

import pytest
from engine_parts import make_message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import eventually
from scripted_core import Reply, ScriptedCore, counting
from served_core import serve_core

from quire.errors import EngineDeadError, QuireError
from quire.frontend.dispatch.backlog import Backlog
from quire.frontend.dispatch.queue_gate import QueueLimits
from quire.launch.engine_process.engine_wire import CloseFrontEnd, OpenFrontEnd
from quire.launch.engine_process.joined_engine import JoinedEngine
from quire.messages import ResetPrefixCache

LIMITS = QueueLimits(2, 100)
LONG = 10**6  # tokens, which never end


class Served:
    """A core with a parent and front ends that connect on demand."""

    def __init__(self, folder, core):
        self.core = core
        self.folder = folder
        self.parent, self.thread = serve_core(core, folder, Backlog(LIMITS))
        self.joined = []
        self._names = itertools.count()

    def join(self, number):
        address = f"unix://{self.folder}/{number}-{next(self._names)}"
        self.parent.control(OpenFrontEnd(number, address))
        front_end = JoinedEngine.join(address, os.getpid())
        self.joined.append(front_end)
        return front_end

    def close(self):
        self.parent.shutdown()
        for each in self.joined:
            each.shutdown()
        self.thread.join()


@pytest.fixture
def serve(tmp_path):
    made = []

    def start(core=None):
        made.append(Served(tmp_path, core or ScriptedCore(counting)))
        return made[-1]

    yield start
    for each in made:
        each.close()


def run_until_done(core):
    """Return the tokens of the requests of a front end, and the errors of those that failed."""
    tokens, errors = {}, {}
    while core._open:
        for output in core.step().outputs:
            tokens[output.request_id] = tokens.get(output.request_id, []) + output.token_ids
            if output.error is not None:
                errors[output.request_id] = output.error
    return tokens, errors


def outputs_of(core):
    """Return the next outputs of a front end, which may be told of other things before."""
    while not (outputs := core.step().outputs):
        pass
    return outputs


def serve_to_the_end(core):
    """Step as long as the engine lives."""
    while True:
        core.check_health()
        if core.has_work():
            core.step()


def test_each_front_end_gets_the_outputs_of_its_own_requests(serve):
    served = serve()
    one, two = served.join(1), served.join(2)
    one.add(make_message("a", prompt=[10], max_tokens=3))
    two.add(make_message("b", prompt=[20], max_tokens=3))
    served.parent.add(make_message("c", prompt=[30], max_tokens=3))
    assert run_until_done(one) == ({"a": [11, 12, 13]}, {})
    assert run_until_done(two) == ({"b": [21, 22, 23]}, {})
    assert run_until_done(served.parent) == ({"c": [31, 32, 33]}, {})


def test_an_id_that_another_front_end_uses_is_refused_to_the_second_alone(serve):
    served = serve()
    one, two = served.join(1), served.join(2)
    one.add(make_message("a", prompt=[10], max_tokens=LONG))
    assert outputs_of(one)
    two.add(make_message("a", prompt=[20], max_tokens=3))
    tokens, errors = run_until_done(two)
    assert tokens == {"a": []}
    assert "is in use" in errors["a"].message
    two.abort(["a"])
    assert outputs_of(one)[0].token_ids
    assert served.core.aborted == []


def test_a_front_end_aborts_only_what_it_has_added(serve):
    served = serve()
    one, two = served.join(1), served.join(2)
    one.add(make_message("a", max_tokens=LONG))
    outputs_of(one)
    two._open["a"] = 0  # as a front end that is wrong would have it
    two.abort(["a"])
    two.add(make_message("b", max_tokens=2))
    run_until_done(two)
    assert served.core.aborted == []
    one.abort(["a"])
    eventually(lambda: served.core.aborted == ["a"])


@pytest.mark.parametrize("leave", ["in order", "by its death", "says its parent"])
def test_a_front_end_that_leaves_takes_its_requests_and_no_others(serve, leave):
    served = serve()
    one, two = served.join(1), served.join(2)
    one.add(make_message("a", max_tokens=LONG))
    two.add(make_message("b", max_tokens=LONG))
    outputs_of(one)
    outputs_of(two)
    if leave == "in order":
        two.shutdown()
    elif leave == "by its death":
        served.joined.remove(two)
        two.channel.close()
    else:
        served.parent.control(CloseFrontEnd(2))
    eventually(lambda: served.core.aborted == ["b"])
    assert outputs_of(one)[0].request_id == "a"
    three = served.join(2)  # the number is free
    three.add(make_message("b", prompt=[20], max_tokens=2))
    assert run_until_done(three) == ({"b": [21, 22]}, {})


def test_one_that_never_came_can_be_closed(serve):
    served = serve()
    served.parent.control(OpenFrontEnd(1, f"unix://{served.folder}/1"))
    with pytest.raises(QuireError, match="there is a front end 1 already"):
        served.parent.control(OpenFrontEnd(1, f"unix://{served.folder}/x"))
    served.parent.control(CloseFrontEnd(1))
    (served.folder / "1").unlink()
    assert served.join(1).stats().num_running == 0


def test_only_the_parent_opens_and_closes_front_ends(serve):
    served = serve()
    one, _ = served.join(1), served.join(2)
    for command in (OpenFrontEnd(3, f"unix://{served.folder}/3"), CloseFrontEnd(2)):
        with pytest.raises(QuireError, match="only the parent"):
            one.control(command)
    one.control(ResetPrefixCache())
    assert served.core.controls == [ResetPrefixCache()]


def test_a_front_end_that_sends_nonsense_is_closed_alone(serve):
    served = serve()
    one, two = served.join(1), served.join(2)
    one.add(make_message("a", max_tokens=LONG))
    outputs_of(one)
    two.channel.send("nonsense")
    with pytest.raises(EngineDeadError, match="left this front end"):
        two.stats()
    assert outputs_of(one)


def test_a_step_that_fails_is_the_death_of_the_engine_for_all(serve):
    core = ScriptedCore(lambda request: Reply([1], RuntimeError("out of smoke")))
    served = serve(core)
    one, two = served.join(1), served.join(2)
    two.stats()
    one.add(make_message("a"))
    for each in (one, two, served.parent):
        with pytest.raises(EngineDeadError, match="out of smoke"):
            serve_to_the_end(each)


def test_the_work_of_all_is_told_to_those_without_requests(serve):
    served = serve(ScriptedCore(counting, step_s=0.01, max_num_seqs=2))
    one, two = served.join(1), served.join(2)
    for name in "abcde":
        one.add(make_message(name, prompt=[10] * 7, max_tokens=LONG))
    one.step()
    loads = []

    def told():
        if (outputs := two.poll_step()) is not None:
            loads.append(outputs.load)
        return loads and loads[-1].num_open == 5 and loads[-1].num_waiting == 3

    eventually(told)
    assert loads[-1].work_tokens > 3 * 7
    one.shutdown()
    eventually(lambda: not told() and loads[-1].num_open == 0)  # told once it is idle


COMMANDS = st.lists(
    st.tuples(
        st.sampled_from(["add", "abort", "step", "leave"]),
        st.integers(0, 2),
        st.sampled_from("abcd"),
        st.integers(1, 5),
    ),
    max_size=25,
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(commands=COMMANDS)
def test_whatever_they_do_each_gets_all_tokens_of_its_own_requests(tmp_path_factory, commands):
    served = Served(tmp_path_factory.mktemp("s"), ScriptedCore(counting))
    try:
        ends = [served.parent, served.join(1), served.join(2)]
        tokens = [{}, {}, {}]
        added = [{}, {}, {}]  # what each may expect

        def take(index, outputs):
            for output in outputs:
                name = output.request_id
                assert name in added[index], "it is another's"
                if output.error is not None:
                    assert "is in use" in output.error.message
                    added[index].pop(name)
                    tokens[index].pop(name, None)
                else:
                    tokens[index].setdefault(name, []).extend(output.token_ids)

        for what, index, name, num in commands:
            end = ends[index]
            if what == "add":
                with suppress(QuireError):
                    end.add(make_message(name, prompt=[100 * index], max_tokens=num))
                    added[index][name] = num
                    tokens[index].pop(name, None)
            elif what == "abort":
                end.abort([name])
                if name in added[index] and len(tokens[index].get(name, ())) < added[index][name]:
                    del added[index][name]
                    tokens[index].pop(name, None)
            elif what == "step" and end.has_work():
                take(index, end.step().outputs)
            elif what == "leave" and index:
                end.shutdown()
                served.parent.control(CloseFrontEnd(index))
                ends[index] = served.join(index)
                added[index], tokens[index] = {}, {}
        for index, end in enumerate(ends):
            while end._open:
                take(index, end.step().outputs)
            expected = {
                name: [100 * index + 1 + i for i in range(num)]
                for name, num in added[index].items()
            }
            assert tokens[index] == expected
    finally:
        served.close()
