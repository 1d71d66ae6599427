"""Ray's driver without Ray: a thread at the other end of the channel, which a test steers."""

import socket
import threading

from quire.errors import EngineDeadError
from quire.interfaces.executor import HelperProcess, JoinPoint
from quire.testing.executor import SleepingProcess
from quire_executors.ray.ray_wire import Reserved, ToDriver, decode, encode

NODES = ["nodeA (10.0.0.1)", "nodeB (10.0.0.2)"]


class ScriptedDriver(HelperProcess):
    """A driver that answers with messages given in advance.

    Args:
        answers: Messages that answer the first ones of the engine, in order.

    Attributes:
        received: Messages of the engine.
        was_killed: Whether the engine did not wait for its end.
    """

    def __init__(self, *answers):
        self._ours, self.channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.received = []
        self.was_killed = False
        self._head = socket.create_server(("127.0.0.1", 0))
        self.head = f"127.0.0.1:{self._head.getsockname()[1]}"
        self._answers = list(answers or [Reserved("10.0.0.1", NODES, self.head)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def say(self, message):
        self.channel.send(encode(message))

    def lose_head(self):
        self._head.close()

    def die(self):
        self.channel.shutdown(socket.SHUT_RDWR)

    def _run(self):
        while frame := self.channel.recv(1 << 16):
            self.received.append(decode(frame, ToDriver))
            if type(self.received[-1]).__name__ == "Release":
                self.die()
            elif self._answers:
                self.say(self._answers.pop(0))

    def fileno(self):
        return self._ours.fileno()

    def send(self, frame):
        try:
            self._ours.send(frame)
        except OSError as error:
            raise EngineDeadError("Ray's driver was killed by SIGKILL") from error

    def receive(self):
        if frame := self._ours.recv(1 << 16):
            return frame
        raise EngineDeadError("Ray's driver was killed by SIGKILL")

    def end(self, timeout_s):
        self._thread.join(timeout_s)
        self.was_killed = self._thread.is_alive()
        self.die()
        self._thread.join()
        return "ended"

    def close(self):
        self.end(0.0)
        self._ours.close()
        self.channel.close()
        self._head.close()


class DescribedProcess(SleepingProcess):
    """A process of which an agent tells what it knows."""

    def __init__(self):
        super().__init__()
        self.pid = self.process.pid

    def state(self, stack_fd):
        return f"it writes its stack to {stack_fd}"


class WaitingPoint(JoinPoint):
    """A port at which processes that sleep have joined, once a function has returned.

    Args:
        num_ranks: Number of processes.
        wait_for: Function that is called before they have joined, with the executor's check.
    """

    address = "10.0.0.1:4711"
    key = "5e" * 32

    def __init__(self, num_ranks, wait_for=lambda check: check()):
        self.processes = [DescribedProcess() for _ in range(num_ranks)]
        self._wait_for = wait_for

    def wait(self, check):
        self._wait_for(check)
        return self.processes
