"""Ctrl-C at any line of a grammar's life costs what was under way, and nothing after it.

The interrupt is not timed: a trace function raises it before the n-th line that runs in the host,
in its links or in what they send and read, for every n there is. Between the lines that make a
socket and those that keep it, an interrupt leaves it to the garbage collector, which warns.
"""

import contextlib
import itertools
import os
import signal
import sys
import time
from collections import Counter

import pytest
from grammar_hosts import allowed
from processes import eventually, is_running, workers_of

from quire.engine.grammar.grammar_host import GrammarHost
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
        line: Which of those that run, from 0; None: it counts them and never raises.

    Attributes:
        is_over: Whether it was raised.
        num_lines: Lines that ran.
    """

    def __init__(self, line=None):
        self.is_over = False
        self.num_lines = 0
        self._line = line

    def __enter__(self):
        self._outer = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind, error, traceback):
        sys.settrace(self._outer)
        return kind is KeyboardInterrupt

    def _trace(self, frame, event, argument):
        is_ours = os.path.basename(frame.f_code.co_filename).startswith("grammar")
        if event == "call":
            return self._trace if is_ours else None
        if event == "line" and not self.is_over:
            self.num_lines += 1
            if self._line is not None and self.num_lines > self._line:
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
    until = time.monotonic() + 60
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
    """Return what both may sample, by slot."""
    slots = {"digits": 0, "letters": 1}
    host.request_masks([(slots[request_id], request_id) for request_id in order])
    return {row.slot: allowed(row.words) for row in host.collect_masks()}


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


def test_uncollected_masks_are_not_taken_for_the_next_ones(host):
    join(host)
    host.request_masks([(0, "digits"), (1, "letters")])
    leave(host)
    join(host)
    host.accept("digits", b"x")
    assert step(host) == {0: {EOS}, 1: MASKS[0][1]}  # what is refused in a turn shows in its masks
    [(request_id, error)] = host.poll()
    assert request_id == "digits"
    assert "does not allow token 120" in str(error)


def test_a_process_whose_masks_were_not_collected_ends_with_its_last_request(host):
    join(host)
    host.request_masks([(0, "digits")])
    [of_digits, of_letters] = processes_of(host)
    leave(host)
    eventually(lambda: processes_of(host) == [of_letters])
    assert not is_running(of_digits)


def test_requests_that_outlive_a_step_that_was_broken_off_stand_where_they_were(host):
    join(host)
    step(host)
    accept(host)
    host.request_masks([(0, "digits"), (1, "letters")])
    assert step(host, ("letters", "digits")) == MASKS[1]
    assert host.poll() == []


def test_a_step_that_was_broken_off_writes_no_row_of_the_next_one(host):
    join(host)
    fork_server = host._parts[0]._fork_server.pid
    processes = workers_of(fork_server)
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


def interrupts(stride=1):
    """Yield an interrupt for each line of what is done with it, until one finds no line left."""
    for line in itertools.count(step=stride):
        interrupt = InterruptAt(line)
        yield interrupt
        if not interrupt.is_over:
            return


def processes_of(host):
    return workers_of(host._parts[0]._fork_server.pid)


def test_an_interrupt_at_any_line_of_a_step_leaves_the_next_ones_right(host):
    join(host)
    step(host)
    accept(host)
    num_lost = Counter()
    for interrupt in interrupts():
        before = processes_of(host)
        with interrupt:
            step(host)
        assert step(host, ("letters", "digits")) == MASKS[1], interrupt.num_lines
        assert host.poll() == [], interrupt.num_lines
        num_lost[len(set(before) - set(processes_of(host)))] += 1
    assert num_lost.keys() == {0, 1, 2}, "turns of no process, of one and of both were broken off"


def test_an_interrupt_at_any_line_of_a_life_leaves_the_next_ones_right(host):
    num_alive = Counter()
    for interrupt in interrupts():
        with interrupt:
            whole_life(host)
        leave(host)
        num_alive[0 if host._started is None else len(processes_of(host))] += 1
        assert whole_life(host) == MASKS, interrupt.num_lines
    assert num_alive[0], "one came before anything was started"
    assert num_alive[2], "and one when both were compiled"


@pytest.fixture
def sharing_host():
    host = GrammarHost(lambda: VOCABULARY, backends=("llguidance",), max_rows=2)
    yield host
    host.shutdown()


@pytest.mark.slow
def test_an_interrupt_in_a_life_in_a_shared_process_leaves_the_next_ones_right(sharing_host):
    host = sharing_host
    num_alive = Counter()
    for interrupt in interrupts(stride=37):
        with interrupt:
            whole_life(host)
        leave(host)
        num_alive[0 if host._started is None else len(processes_of(host))] += 1
        assert whole_life(host) == MASKS, interrupt.num_lines
        assert whole_life(host) == MASKS, "as a grammar that is compiled already"
        eventually(lambda: len(processes_of(host)) <= 2)
        if host._pool._shared is not None:
            host._pool.lose(host._pool._shared)
        for key in list(host._pool._grammars):
            host._pool.remove(key)
    assert num_alive[0], "one came before anything was started"
    assert num_alive[1], "and one when both were compiled"


@pytest.mark.parametrize("part", [0.0, 0.2, 0.4, 0.6, 0.8])
def test_shutdown_after_an_interrupt_is_clean(part):
    host = GrammarHost(lambda: VOCABULARY, max_rows=2)
    whole_life(host)
    with InterruptAt() as counted:
        whole_life(host)
    interrupt = InterruptAt(int(part * counted.num_lines))
    with interrupt:
        whole_life(host)
    assert interrupt.is_over
    start = time.monotonic()
    host.shutdown()
    host.shutdown()
    assert time.monotonic() - start < 4  # no process had to be killed
    leave(host)
