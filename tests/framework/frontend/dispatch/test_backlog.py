"""The estimate of a wait: what waits, divided by how fast such work is served."""

import math

import msgspec
import pytest
from engine_parts import make_message
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import OverloadedError
from quire.frontend.dispatch.backlog import NUM_NEXT, Backlog
from quire.frontend.dispatch.queue_gate import MARGIN, QueueLimits
from quire.messages import EngineOutput, EngineOutputs, EngineStats


class Engine:
    """An engine that serves a token of each running request in a step of 0.1 s."""

    def __init__(self, max_running=2, max_queued=100, **limits):
        self.now_s = 0.0
        self.max_running = max_running
        self.backlog = Backlog(
            QueueLimits(max_running, max_queued, **limits), clock=lambda: self.now_s
        )
        self.left = {}
        self.num_added = 0

    def add(self, num=1, num_prompt_tokens=10, num_tokens=10, max_tokens=10, timeout_s=None):
        messages = []
        for _ in range(num):
            self.num_added += 1
            name = f"r{self.num_added}"
            prompt = list(range(num_prompt_tokens))
            message = make_message(name, prompt=prompt, max_tokens=max_tokens)
            at = {"arrival_s": self.now_s, "timeout_s": timeout_s}
            messages.append(msgspec.structs.replace(message, **at))
            self.left[name] = num_tokens
        self.backlog.add(messages)

    def step(self, num=1):
        for _ in range(num):
            self.now_s += 0.1
            outputs = []
            for name in list(self.left)[: self.max_running]:
                self.left[name] -= 1
                reason = None if self.left[name] else "stop"
                outputs.append(EngineOutput(request_id=name, token_ids=[7], finish_reason=reason))
                if reason:
                    del self.left[name]
            self.backlog.take(EngineOutputs(outputs, self.stats), len(outputs))

    @property
    def stats(self):
        num_running = min(len(self.left), self.max_running)
        return EngineStats(num_running=num_running, num_waiting=len(self.left) - num_running)


def test_the_wait_is_the_work_of_the_queue_by_the_rate():
    engine = Engine()
    engine.add(200)
    engine.step(300)  # 2 of them in a second: 60 have ended, and 138 wait
    assert engine.backlog.num_waiting == 138
    assert engine.backlog.wait_s == pytest.approx(138 / 2, rel=0.1)


def test_while_nothing_is_measured_nothing_is_said():
    engine = Engine()
    engine.add(50)
    assert engine.backlog.num_waiting == 48
    assert engine.backlog.wait_s == 0
    engine.backlog.check_room(0.1, 1)


def test_requests_that_start_at_once_do_not_wait():
    engine = Engine(max_running=8)
    engine.add(4)
    engine.step(5)
    engine.add(4)  # the engine has not seen these, but has slots
    assert engine.backlog.num_waiting == 0
    engine.add(1)
    assert engine.backlog.num_waiting == 1


def test_requests_that_wait_for_their_grammars_keep_no_other_waiting():
    engine = Engine(max_running=8)
    engine.add(4)
    engine.step(8)
    engine.add(30)  # of which the engine starts none
    preparing = EngineStats(num_running=4, num_waiting=30, num_grammars_waiting=30)
    engine.backlog.take(EngineOutputs([], preparing), 0)
    assert (engine.backlog.num_waiting, engine.backlog.wait_s) == (0, 0)


def test_the_wait_ends_with_the_queue():
    engine = Engine()
    engine.add(40)
    waits = []
    while engine.left:
        engine.step(10)
        waits.append(engine.backlog.wait_s)
    assert waits[2:] == sorted(waits[2:], reverse=True)
    assert waits[-1] == 0
    assert len(engine.backlog) == 0


def test_a_hang_makes_the_wait_longer():
    engine = Engine()
    engine.add(40)
    engine.step(40)
    before_s = engine.backlog.wait_s
    engine.now_s += 60
    assert engine.backlog.wait_s > 3 * before_s


def test_completions_are_expected_to_be_as_long_as_those_that_ended():
    engine = Engine()
    engine.add(10, num_tokens=5, max_tokens=1000)
    engine.step(20)
    engine.add(100, num_prompt_tokens=10, num_tokens=5, max_tokens=1000)
    engine.step(10)
    assert engine.backlog._completion_tokens == pytest.approx(5, rel=0.3)
    num_waiting = engine.backlog.num_waiting
    assert engine.backlog.wait_s == pytest.approx(num_waiting / 4, rel=0.3)


def test_what_is_removed_waits_no_longer():
    engine = Engine()
    engine.add(40)
    engine.step(40)
    waiting = list(engine.left)[2:]
    for name in waiting:
        del engine.left[name]
    engine.backlog.remove([*waiting, "unknown"])
    engine.step()
    assert (engine.backlog.num_waiting, engine.backlog.wait_s) == (0, 0)


def test_a_completion_that_a_stop_string_ended_counts_for_the_length_of_others():
    engine = Engine()
    engine.add(2, num_tokens=100, max_tokens=100)
    engine.step(10)
    engine.backlog.remove(["r1", "r2"])
    assert engine.backlog._completion_tokens == pytest.approx(10)


def test_a_full_queue_refuses():
    engine = Engine(max_running=2, max_queued=3)
    engine.add(4)
    engine.backlog.check_room(math.inf, 1)
    engine.add(1)
    with pytest.raises(OverloadedError, match="3 requests are queued beyond those that can run"):
        engine.backlog.check_room(math.inf, 1, is_urgent=True)


def test_a_request_that_would_wait_too_long_is_refused():
    engine = Engine(max_queued=1000, max_wait_s=60.0)
    engine.add(80)
    engine.step(40)  # about 36 s wait
    engine.backlog.check_room(math.inf, 1)
    engine.backlog.check_room(50.0, 1)
    with pytest.raises(OverloadedError, match=r"about 3\d s long, .* this request has 10 s left"):
        engine.backlog.check_room(10.0, 1)
    engine.backlog.check_room(10.0, 1, is_urgent=True)
    engine.add(100)
    with pytest.raises(OverloadedError, match=r"may wait for 60 s \(max_queue_wait_s\)"):
        engine.backlog.check_room(math.inf, 1)


def test_a_request_that_would_not_end_in_time_is_refused_only_if_it_must_wait():
    engine = Engine(max_running=10)
    engine.add(10, num_tokens=50, max_tokens=50)
    engine.step(49)
    engine.backlog.check_room(1.0, max_tokens=50)  # it can start at once: that is its own affair
    engine.step(10)
    engine.add(60, num_tokens=50, max_tokens=50)
    engine.step(52)  # 50 of them wait for a completion each; one takes 5 s
    wait_s = engine.backlog.wait_s
    for run_s, max_tokens in ((1.0, 1), (1.0, 5), (9.0, 50)):
        engine.backlog.check_room(MARGIN * (wait_s + run_s), max_tokens)
    with pytest.raises(OverloadedError, match="a completion takes about 5 s"):
        engine.backlog.check_room(MARGIN * (wait_s + 1.0), max_tokens=50)


def test_a_request_must_have_more_time_than_the_estimate():
    engine = Engine(max_running=10)
    engine.add(20, num_tokens=50, max_tokens=50)
    engine.step(49)
    wait_s = engine.backlog.wait_s
    engine.backlog.check_room(MARGIN * wait_s + 0.5, max_tokens=1)
    with pytest.raises(OverloadedError, match=r"of which these may take 80%"):
        engine.backlog.check_room(MARGIN * wait_s - 0.1, max_tokens=1)


@pytest.fixture
def queued():
    """An engine that needs 5 s for a completion, and has run the first ten for 4 s of them."""
    engine = Engine(max_running=10)
    engine.add(10, num_tokens=50, max_tokens=50)
    engine.add(5, num_tokens=50, max_tokens=50, timeout_s=8.0)
    engine.add(5, num_tokens=50, max_tokens=50, timeout_s=20.0)
    engine.add(80, num_tokens=50, max_tokens=50, timeout_s=8.0)
    return engine


def test_requests_that_could_not_end_in_their_time_are_not_begun(queued):
    assert queued.backlog.take_hopeless() == [], "nothing was measured"
    queued.step(25)
    assert queued.backlog.take_hopeless() == []
    queued.step(15)
    hopeless = queued.backlog.take_hopeless()  # they have 4 s left
    assert hopeless[:6] == ["r11", "r12", "r13", "r14", "r15", "r21"]
    assert set(hopeless) == {f"r{i}" for i in range(11, 11 + NUM_NEXT)} - {
        f"r{i}" for i in range(16, 21)
    }
    assert queued.backlog.take_hopeless() == [], "each is returned once"
    queued.backlog.remove(hopeless)
    assert queued.backlog.take_hopeless() == [f"r{i}" for i in range(11 + NUM_NEXT, 101)]


def test_requests_that_have_begun_are_not_hopeless(queued):
    queued.step(51)  # ten more have begun, and have one token
    hopeless = queued.backlog.take_hopeless()
    assert hopeless[0] == "r21"
    assert queued.backlog.num_waiting == 80


def test_the_timeout_of_the_server_counts_for_requests_that_name_none():
    engine = Engine(max_running=1)
    engine.backlog = Backlog(QueueLimits(1, 100), lambda: engine.now_s, max_timeout_s=8.0)
    engine.add(3, num_tokens=50, max_tokens=50)
    engine.step(40)
    assert engine.backlog.take_hopeless() == ["r2", "r3"]


class ChunkedEngine:
    """An engine with one decoding chat, that computes the rest of 2048 tokens in order a second."""

    def __init__(self, num_decode_steps=0):
        self.now_s = 0.0
        self.backlog = Backlog(QueueLimits(2, 100), clock=lambda: self.now_s)
        self.prompts = {}
        self.backlog.add([make_message("chat", prompt=[1] * 10, max_tokens=1000)])
        for _ in range(num_decode_steps):
            self.now_s += 1.0
            self.take([EngineOutput(request_id="chat", token_ids=[7])], 1)

    def add(self, name, num_prompt_tokens=100_000):
        self.prompts[name] = num_prompt_tokens
        self.backlog.add([make_message(name, prompt=[1] * num_prompt_tokens, max_tokens=10)])

    def step(self, num_cached_tokens=0):
        self.now_s += 1.0
        left = 2047
        outputs = [EngineOutput(request_id="chat", token_ids=[7])]
        for name in list(self.prompts)[:1]:
            num = min(left, max(1, self.prompts[name] - num_cached_tokens))
            left -= num
            self.prompts[name] -= num + num_cached_tokens
            if not self.prompts[name]:
                del self.prompts[name]
                outputs.append(EngineOutput(request_id=name, token_ids=[7], finish_reason="length"))
        self.take(outputs, 2048 - left)

    def take(self, outputs, num_scheduled):
        waiting = max(0, len(self.prompts) - 1)
        stats = EngineStats(
            num_running=1 + len(self.prompts) - waiting,
            num_waiting=waiting,
            num_scheduled_tokens=num_scheduled,
        )
        num_generated = sum(len(output.token_ids) for output in outputs)
        self.backlog.take(EngineOutputs(outputs, stats), num_generated)

    @property
    def true_wait_s(self):
        return sum(self.prompts.values()) / 2047


@pytest.mark.parametrize("num_decode_steps", [1, 30])
def test_the_wait_behind_long_prompts_in_chunks_is_the_time_of_what_is_left(num_decode_steps):
    engine = ChunkedEngine(num_decode_steps)
    engine.add("a")
    engine.add("b")
    for i in range(48):
        engine.step()
        assert engine.backlog.num_waiting == 1
        rel = 1.0 if i < 10 else 0.1  # the first steps computed less
        assert engine.backlog.wait_s == pytest.approx(engine.true_wait_s, rel=rel)
    engine.add("c")
    while len(engine.prompts) > 1:
        engine.step()
        if len(engine.prompts) > 1:
            assert engine.backlog.wait_s == pytest.approx(engine.true_wait_s, rel=0.1)
    assert engine.backlog.wait_s == 0


def test_cached_tokens_of_a_prompt_end_their_wait_with_its_first_output():
    engine = ChunkedEngine(1)
    for i in range(10):
        engine.add(f"r{i}", 2000)
    for _ in range(10):
        engine.step(num_cached_tokens=1999)  # one is computed
    assert (engine.backlog._prompt_tokens, engine.backlog._expected_tokens) == (0, 0)
    engine.add("a")
    engine.add("b")
    engine.step()
    assert engine.backlog.wait_s == pytest.approx(engine.true_wait_s, rel=0.3)


def test_cached_tokens_of_one_prompt_are_no_computed_ones_less_of_another():
    engine = ChunkedEngine(1)
    engine.add("a")
    engine.add("cached", 5000)
    engine.now_s += 1.0
    del engine.prompts["cached"]
    hit = EngineOutput(
        request_id="cached", token_ids=[7], finish_reason="length", num_cached_tokens=4990
    )
    engine.take([hit], 2011)
    assert engine.backlog._prompt_tokens == 98_000


def test_prompts_that_are_aborted_in_chunks_leave_no_work_and_take_none():
    engine = ChunkedEngine(1)
    for i in range(20):
        engine.add(f"r{i}")
    for i in range(10):
        engine.step()
        engine.step()
        del engine.prompts[f"r{i}"]
        engine.backlog.remove([f"r{i}"])
    engine.step()
    assert engine.backlog._prompt_tokens == sum(engine.prompts.values())


def test_a_prompt_whose_log_probabilities_come_in_chunks_is_not_done_at_the_first():
    engine = ChunkedEngine(1)
    engine.add("a")
    engine.now_s += 1.0
    engine.take([EngineOutput(request_id="a", token_ids=[], prompt_logprobs=[])], 2000)
    assert engine.backlog._prompt_tokens == 98_000


def test_rejected_drafts_are_no_work_on_prompts_that_wait():
    engine = ChunkedEngine(1)
    engine.backlog.add([make_message("other", prompt=[1] * 10, max_tokens=10)])
    engine.take([EngineOutput(request_id="other", token_ids=[7])], 10)
    engine.backlog.add([make_message("waits", prompt=[1] * 1000, max_tokens=10)])
    outputs = [EngineOutput(request_id=name, token_ids=[7]) for name in ("chat", "other")]
    stats = EngineStats(num_running=2, num_waiting=1, num_scheduled_tokens=10)
    for _ in range(50):
        engine.backlog.take(EngineOutputs(outputs, stats), 2)
    assert engine.backlog._prompt_tokens == 1000


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(1, 500), st.integers(1, 50)),
        st.tuples(st.just("step"), st.integers(1, 20)),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.floats(0, 100)),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_a_wait_is_never_negative_grows_with_the_queue_and_is_nothing_when_idle(actions):
    engine = Engine(max_running=3)
    for action, *values in actions:
        if action == "add":
            num, num_prompt_tokens, num_tokens = values
            before_s = engine.backlog.wait_s
            engine.add(num, num_prompt_tokens, num_tokens, max_tokens=num_tokens)
            assert engine.backlog.wait_s >= before_s * (1 - 1e-9)
        elif action == "step":
            engine.step(*values)
        elif action == "remove":
            names = list(engine.left)[values[0] :]
            for name in names:
                del engine.left[name]
            engine.backlog.remove(names)
        else:
            engine.now_s += values[0]
        assert engine.backlog.wait_s >= 0
        assert 0 <= engine.backlog.num_waiting <= len(engine.backlog)
        assert len(engine.backlog) == len(engine.left)
        if not engine.left:
            assert engine.backlog.wait_s == 0
