"""A process of a group that was launched, and the connection to it."""

import socket
from dataclasses import dataclass

from quire.process.children.child_process import ChildProcess


@dataclass(frozen=True, slots=True)
class Launched:
    """A process that serves HTTP.

    Attributes:
        process: The process.
        control: This end of the connection to it.
    """

    process: ChildProcess
    control: socket.socket
