"""Ctrl-C at any line of a grammar's life costs what was under way, and nothing after it.

The interrupt is not timed: a trace function raises it before the n-th line that runs in the host,
in its links or in what they send and read, for every n there is. Between the lines that make a
socket and those that keep it, an interrupt leaves it to the garbage collector, which warns.
"""

import contextlib
import os
import signal
import sys
import time

import pytest
from processes import workers_of

from quire.engine.grammar import GrammarHost
from quire.interfaces.structured_output import Vocabulary
from quire.sampling_params import StructuredOutputsParams as Params

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

EOS = 256
VOCABULARY = Vocabulary({bytes([byte]): [byte] for byte in range(256)}, (EOS,), EOS + 1)
DIGITS, LETTERS = Params(regex="1[2-9]{0,9}-"), Params(regex="a[b-z]{0,9}-")
MASKS = [{0: {ord("1")}, 1: {ord("a")}}]
MASKS.append({0: set(b"23456789-"), 1: set(b"bcdefghijklmnopqrstuvwxyz-")})


class InterruptAt:
    """Raises KeyboardInterrupt before one line of the engine's grammar modules.

    Args:
        line: Which of those that run, from 0.

    Attributes:
        is_over: Whether it was raised.
    """

    def __init__(self, line):
        self.is_over = False
        self._num_lines_left = line

    def __enter__(self):
        self._outer = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, kind, error, traceback):
        sys.settrace(self._outer)
        return kind is KeyboardInterrupt

    def _trace(self, frame, event, argument):
        is_ours = os.path.basename(frame.f_code.co_filename).startswith("grammar")
        if event == "call":
            return self._trace if is_ours else None
        if event == "line" and not self.is_over:
            self._num_lines_left -= 1
            if self._num_lines_left < 0:
                self.is_over = True
                raise KeyboardInterrupt
        return self._trace


@pytest.fixture
def host():
    host = GrammarHost(lambda: VOCABULARY, max_rows=2)
    yield host
    host.shutdown()


def join(host):
    """Submit both requests and wait until they are ready."""
    waiting = {"digits", "letters"}
    host.submit("digits", DIGITS)
    host.submit("letters", LETTERS)
    until = time.monotonic() + 10
    while waiting:
        assert time.monotonic() < until
        host.wait_for_compile(0.1)
        for request_id, error in host.poll():
            assert error is None
            waiting.discard(request_id)


def leave(host):
    host.release("digits")
    host.release("letters")


def step(host, order=("digits", "letters")):
    """Return what both may draw, by slot."""
    slots = {"digits": 0, "letters": 1}
    host.request_masks([(slots[request_id], request_id) for request_id in order])
    return {row.slot: allowed(row.words) for row in host.collect_masks()}


def allowed(words):
    return {v for v in range(8 * len(words)) if words[v // 8] >> v % 8 & 1}


def accept(host):
    host.accept("digits", b"1")
    host.accept("letters", b"a")


def whole_life(host):
    """Return the masks of two steps of two new requests."""
    join(host)
    masks = [step(host)]
    accept(host)
    masks.append(step(host))
    leave(host)
    return masks


def test_masks_that_nobody_collects_are_not_taken_for_the_next_ones(host):
    join(host)
    host.request_masks([(0, "digits"), (1, "letters")])
    leave(host)
    join(host)
    host.accept("digits", b"x")
    assert step(host) == {0: {EOS}, 1: MASKS[0][1]}  # what is refused in a turn shows in its masks
    [(request_id, error)] = host.poll()
    assert request_id == "digits"
    assert "does not allow token 120" in str(error)


def test_requests_that_outlive_a_step_that_was_broken_off_stand_where_they_were(host):
    join(host)
    step(host)
    accept(host)
    host.request_masks([(0, "digits"), (1, "letters")])
    assert step(host, ("letters", "digits")) == MASKS[1]
    assert host.poll() == []


def test_a_step_that_was_broken_off_writes_no_row_of_the_next_one(host):
    join(host)
    nursery = host._parts[0]._nursery.pid
    processes = workers_of(nursery)
    os.kill(processes[0], signal.SIGSTOP)  # the one of the digits was started first
    host.request_masks([(0, "digits")])
    host.request_masks([(0, "letters")])  # the same row of the table, from another process
    time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(processes[0], signal.SIGCONT)
    time.sleep(0.05)
    [row] = host.collect_masks()
    assert allowed(row.words) == MASKS[0][1]
    assert step(host) == MASKS[0]


def test_an_interrupt_at_any_line_of_a_step_leaves_the_next_ones_right(host):
    join(host)
    step(host)
    accept(host)
    line, interrupt = 0, InterruptAt(0)
    while True:
        with interrupt:
            step(host)
        assert step(host, ("letters", "digits")) == MASKS[1], line
        assert host.poll() == [], line
        if not interrupt.is_over:
            break
        line += 1
        interrupt = InterruptAt(line)
    assert line > 60  # the frames of two turns were cut at each of their parts


def test_an_interrupt_at_any_line_of_a_life_leaves_the_next_ones_right(host):
    line, interrupt = 0, InterruptAt(0)
    while True:
        with interrupt:
            whole_life(host)
        leave(host)
        assert whole_life(host) == MASKS, line
        if not interrupt.is_over:
            break
        line += 1
        interrupt = InterruptAt(line)
    assert line > 200


@pytest.mark.parametrize("line", range(0, 160, 20))
def test_shutdown_after_an_interrupt_is_clean(line):
    host = GrammarHost(lambda: VOCABULARY, max_rows=2)
    whole_life(host)
    interrupt = InterruptAt(line)
    with interrupt:
        whole_life(host)
    assert interrupt.is_over
    start = time.monotonic()
    host.shutdown()
    host.shutdown()
    assert time.monotonic() - start < 4  # nobody had to be killed
    leave(host)
