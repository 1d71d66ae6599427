"""A command in a terminal of its own: what it prints there, and keys that are typed."""

import os
import pty
import select
import signal
import sys
import time

LIMIT_S = 120.0


class Terminal:
    """`quire` in a pseudo-terminal, which is its standard input, output and error."""

    def __init__(self, *argv):
        self.shown = ""
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
            os.execv(sys.executable, [sys.executable, "-m", "quire.cli", *argv])

    def type(self, text):
        os.write(self._fd, text.encode())

    def interrupt(self):
        """Press Ctrl-C; Python does not see one that comes between a prompt and its read."""
        time.sleep(1.0)
        self.type("\x03")

    def read_until(self, text):
        """Read until a text is shown; return whether it was before the command ended."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if not self._read():
                return text in self.shown
        return True

    def status(self):
        """Read to the end; return the exit status."""
        deadline = time.monotonic() + LIMIT_S
        while self._read():
            assert time.monotonic() < deadline, self.shown
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self):
        if not select.select([self._fd], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._fd, 4096)
        except OSError:  # the command has closed it
            return False
        self.shown += data.decode()
        return bool(data)
