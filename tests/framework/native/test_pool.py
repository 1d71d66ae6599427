"""The thread pool: each part of a call is done once, and idle threads sleep."""

import ctypes
import threading
from pathlib import Path

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER, run_python

from quire.native.library import NativeLibrary

pytestmark = NEEDS_COMPILER

SOURCE = Path(__file__).parent / "pool_trials.cpp"
NUMBER = (ctypes.c_int64,)
POINTER = (ctypes.c_void_p,)
FUNCTIONS = {
    "many_rounds": (*NUMBER * 3, *POINTER),
    "nested": (*NUMBER * 3, *POINTER),
    "shares": (*NUMBER * 2, *POINTER),
    "meeting": POINTER,
}
LIBRARY = NativeLibrary("trials of the pool", SOURCE, FUNCTIONS)


@pytest.fixture(scope="module")
def pool():
    return LIBRARY.load()


def wrong(function, *sizes):
    """Return how many parts were not done just once."""
    count = ctypes.c_int64(-1)
    function(*sizes, ctypes.addressof(count))
    return count.value


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 64])
def test_each_part_is_done_once(pool, parts):
    assert wrong(pool.many_rounds, 3000 // parts, parts, 0) == 0


@pytest.mark.parametrize("parts", [2, 5])
def test_sleeping_threads_miss_nothing(pool, parts):
    assert wrong(pool.many_rounds, 200, parts, 1) == 0


def test_no_parts_are_no_work(pool):
    assert wrong(pool.many_rounds, 3, 0, 0) == 0


def test_more_parts_than_the_pool_counts_are_done_by_the_caller(pool):
    assert wrong(pool.many_rounds, 2, 2**15 + 1, 0) == 0
    assert wrong(pool.many_rounds, 2, 2**16 + 1, 0) == 0


def test_two_threads_work_at_the_same_time(pool):
    """One that the system does not let run in time may miss it, but not every time."""
    met = ctypes.c_int32(0)
    for _ in range(20):
        pool.meeting(ctypes.addressof(met))
        if met.value:
            return
    pytest.fail("the caller did all parts itself")


@pytest.mark.parametrize(("outer", "inner"), [(1, 3), (2, 2), (3, 5), (4, 1)])
def test_a_part_may_make_a_call(pool, outer, inner):
    assert wrong(pool.nested, 300, outer, inner) == 0


def test_several_threads_call_at_the_same_time(pool):
    counts = []

    def call(parts):
        counts.append(wrong(pool.many_rounds, 1500, parts, 0))
        counts.append(wrong(pool.nested, 300, parts, 2))

    callers = [threading.Thread(target=call, args=(parts,)) for parts in (2, 3, 4, 2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert counts == [0] * 8


@pytest.mark.parametrize("threads", [-1, 0, 1, 2, 3, 9])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_work_is_shared_whole(pool, count, threads):
    done = torch.zeros(count, dtype=torch.int32)
    pool.shares(count, threads, done.data_ptr())
    assert torch.equal(done, torch.ones_like(done))


PROGRAM = f"""
import ctypes, os, resource, sys
from pathlib import Path
from quire.native.library import NativeLibrary
types = (*(ctypes.c_int64,) * 3, ctypes.c_void_p)
functions = NativeLibrary("trials", Path({str(SOURCE)!r}), {{"many_rounds": types}}).load()

def wrong(rounds, parts, rest=0):
    count = ctypes.c_int64(-1)
    functions.many_rounds(rounds, parts, rest, ctypes.addressof(count))
    return count.value
"""
FORKED = """
assert wrong(100, 3) == 0
for rest in (0, 1, 2):  # while the threads look for work, and while they sleep
    wrong(rest, 3, rest)
    child = os.fork()
    if not child:
        os._exit(int(wrong(300, 3) != 0 or wrong(30, 4, 1) != 0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert wrong(100, 3) == 0
"""
CROWDED = """
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20),) * 2)  # less than a thread's stack
assert wrong(100, 5) == 0
"""


def ends_well(code):
    done = run_python(PROGRAM + code, {})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_process_has_a_pool_of_its_own():
    ends_well(FORKED)


def test_where_the_system_grants_no_thread_the_caller_does_all():
    ends_well(CROWDED)


def test_a_process_ends_while_threads_look_for_work_or_sleep():
    ends_well("assert wrong(100, 4) == 0\n")
    ends_well("assert wrong(100, 4) == 0\nimport time\ntime.sleep(0.05)\n")


ASLEEP = """
import time
def others():
    tasks = [task for task in os.listdir("/proc/self/task") if task != str(os.getpid())]
    stats = [Path(f"/proc/self/task/{task}/stat").read_text() for task in tasks]
    return [stat.rpartition(")")[2].split()[0] for stat in stats]

time.sleep(0.1)  # the compiling process has gone
before = others()
assert wrong(100, 4) == 0
for _ in range(500):
    if (now := others()) == before + 3 * ["S"]:
        sys.exit()
    time.sleep(0.01)
sys.exit(f"there were {before}, and now {now}")
"""


def test_threads_without_work_sleep():
    ends_well(ASLEEP)
