"""Launch of a process that serves HTTP."""

import logging
import os
import socket

from quire.cli.api_servers.front_end_config import FrontEndConfig
from quire.launch.front_end_start import FrontEndPlan
from quire.process.children.child_process import ChildProcess
from quire.process.children.python_child import python_arguments
from quire.process.ipc import encode
from quire.server.group.launched import Launched
from quire.server.group.shared_memory import SharedMemory
from quire.server.keys.accounts import Accounts

MODULE = "quire.cli.api_servers.entry"


class Launcher:
    """Launches processes that accept from one socket.

    Args:
        plan: What they choose as this process has.
        listener: Bound socket.
        memory: What all of them share.
        accounts: Accounts of the keys.
    """

    def __init__(
        self,
        plan: FrontEndPlan,
        listener: socket.socket,
        memory: SharedMemory,
        accounts: Accounts,
    ) -> None:
        self._accounts = accounts
        self._plan = plan
        self._memory = memory
        self._listener = listener

    def launch(self, number: int) -> Launched:
        """Launch the process of a number.

        Raises:
            QuireError: It cannot be launched.
        """
        control, theirs = socket.socketpair()
        with theirs:
            fds = (self._listener.fileno(), theirs.fileno(), *self._memory.fds)
            config = FrontEndConfig(
                number=number,
                plan=self._plan,
                log_level=logging.getLogger("quire").getEffectiveLevel(),
                listener_fd=fds[0],
                control_fd=fds[1],
                ledgers_fd=fds[2],
                counts_fd=fds[3],
                salt_secret=self._accounts.salt_secret,
            )
            arguments = python_arguments(MODULE, [str(os.getpid())])
            return Launched(ChildProcess(arguments, encode(config), fds=fds), control)
