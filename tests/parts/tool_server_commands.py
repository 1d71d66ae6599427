"""Commands of the tool servers of tests, as `--tool-server` takes them."""

import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent


def raw_server(name: str, fault: str = "", mark: str = "") -> str:
    """Return the command of a server without any package."""
    return shlex.join([sys.executable, str(HERE / "raw_tool_server.py"), name, fault, mark])


def mcp_server(*arguments: str) -> str:
    """Return the command of a server made with the `mcp` package."""
    return shlex.join([sys.executable, str(HERE / "mcp_tool_server.py"), *arguments])
