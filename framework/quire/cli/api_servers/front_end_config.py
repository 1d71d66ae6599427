"""Configuration of a process that serves HTTP; it gets it on its standard input."""

import msgspec

from quire.launch.front_end_start import FrontEndPlan


class FrontEndConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of one process.

    Attributes:
        number: Its number, from 1 on.
        plan: What its parent has chosen, with all settings. They have API keys, so this is neither
            in the environment nor on a command line.
        log_level: Log level of the parent.
        listener_fd: Inherited file descriptor of the bound socket.
        control_fd: Inherited file descriptor of the connection to the parent.
        ledgers_fd: Inherited file descriptor of the accounts' memory.
        counts_fd: Inherited file descriptor of the memory with the numbers of connections.
        salt_secret: Secret of the server for the salts of keys; None: there are no salts yet.
    """

    number: int
    plan: FrontEndPlan
    log_level: int
    listener_fd: int
    control_fd: int
    ledgers_fd: int
    counts_fd: int
    salt_secret: bytes | None
