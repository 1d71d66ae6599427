"""An event that is set from any thread, and closed once."""

import os
import select

from quire.process.wake_event import WakeEvent


def is_set(event):
    return bool(select.select([event.fileno()], [], [], 0)[0])


def test_a_set_event_is_readable_until_it_is_cleared():
    event = WakeEvent()
    assert not is_set(event)
    event.set()
    event.set()
    assert is_set(event)
    assert event.clear()
    assert not is_set(event)
    assert not event.clear()
    event.close()


def test_only_the_first_close_counts_and_a_set_after_it_writes_nowhere():
    event = WakeEvent()
    fd = event.fileno()
    assert event.close()
    reader, writer = os.pipe()  # one of them gets the number of the closed descriptor
    assert fd in (reader, writer)
    event.set()
    assert not event.close()
    assert not select.select([reader], [], [], 0)[0]
    os.close(reader)
    os.close(writer)


def test_in_a_fork_it_does_nothing():
    event = WakeEvent()
    pid = os.fork()
    if pid == 0:
        event.set()
        os._exit(int(event.close()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not is_set(event)
    assert event.owner_pid == os.getpid()
    assert event.close()
