"""Event that any thread may set, and that one thread waits for together with other descriptors."""

import os
import threading
import weakref


class WakeEvent:
    """An event with a file descriptor; in a fork of its process it does nothing."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._owner_pid = os.getpid()
        # So that `set` never writes to a closed descriptor. Reentrant: a finalizer may run inside.
        self._lock = threading.RLock()
        self._release = weakref.finalize(self, os.close, self._fd)
        self._release.atexit = False

    def fileno(self) -> int:
        """Return the file descriptor that is readable while the event is set."""
        return self._fd

    @property
    def owner_pid(self) -> int:
        """Process id of the process that made the event."""
        return self._owner_pid

    def set(self) -> None:
        """Set the event; from any thread, also after `close`."""
        with self._lock:
            if self._is_usable:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> bool:
        """Clear the event; return whether it was set."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return False
        return True

    def close(self) -> bool:
        """Close the descriptor; return whether this call did, not an earlier one."""
        with self._lock:
            was_usable = self._is_usable
            if was_usable:
                self._release()
            return was_usable

    @property
    def _is_usable(self) -> bool:
        return self._release.alive and os.getpid() == self._owner_pid
