"""`quire worker`: the ranks of one machine, for an engine on this machine or on another one."""

import argparse
import logging
import os

from quire.cli.command_parser import CommandParser, number
from quire.config import check_timeout
from quire.errors import SettingsError
from quire.launch.workers.nodes.node_agent import AgentPlace, run_agent
from quire.launch.workers.nodes.own_ranks import own_ranks
from quire.machine.network_interfaces import listening_address
from quire.process.launch_key import LaunchKey
from quire.process.network.tcp_address import TcpAddress

logger = logging.getLogger(__name__)

EPILOG = """\
The engine is started with --executor joined and --worker-address; it waits for all ranks. The key
is a file with the same content on all machines, which `quire worker --new-key FILE` writes. The
rank is that of the launcher (torchrun, SLURM, MPI, LeaderWorkerSet), or given by --rank.
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--join", metavar="HOST:PORT", help="engine to join")
    action.add_argument("--new-key", metavar="FILE", help="write a new key, and exit")
    parser.add_argument("--key-file", metavar="FILE", help="key of the launch; - is standard input")
    parser.add_argument(
        "--rank", type=number(int), help="rank, or first one; default: the launcher's"
    )
    parser.add_argument("--count", type=number(int), default=1, help="number of ranks to start (1)")
    parser.add_argument(
        "--host-ip",
        metavar="IP",
        help="address at which other machines reach this one; default: that of the interface to "
        "the engine",
    )
    parser.add_argument(
        "--join-timeout-s",
        type=number(float),
        default=600.0,
        help="time for the engine to start (600)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the ranks until the engine stops, or write a key."""
    if arguments.new_key is not None:
        LaunchKey.new().write(arguments.new_key)
        return 0
    if arguments.key_file is None:
        raise SettingsError(
            "--key-file is needed: the file that the engine has as --worker-key-file, or - to read "
            "it from standard input"
        )
    engine = str(TcpAddress.parse(arguments.join))
    ranks = own_ranks(arguments.rank, arguments.count, os.environ)
    if arguments.host_ip is not None:
        listening_address(arguments.host_ip)
    timeout_s = arguments.join_timeout_s
    check_timeout("--join-timeout-s", timeout_s, 0)
    logger.info("reading the key from %s", arguments.key_file)
    return run_agent(
        AgentPlace(
            engine=engine,
            key_file=arguments.key_file,
            ranks=ranks,
            host_ip=arguments.host_ip,
            timeout_s=timeout_s,
        )
    )
