"""Command line and environment of a Python child that imports the same quire as its parent.

The child starts with the parent's `sys.path`. With `python -m`, the current directory would come
first on the path, so that the child might import another quire.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import fields

from quire.config import ENVIRONMENT_PREFIX, ServerSettings

_BOOT = (
    "import sys; end = 2 + int(sys.argv[1]); sys.path[:] = sys.argv[2:end]; "
    "from {module} import main; sys.exit(main(sys.argv[end:]))"
)


def python_arguments(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line after `python` that calls `main` of a module with some arguments."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return ["-P", "-c", _BOOT.format(module=module), str(len(path)), *path, *arguments]


def child_environment() -> dict[str, str]:
    """Return this process's environment without the server's options, such as the API key."""
    private = {ENVIRONMENT_PREFIX + option.name.upper() for option in fields(ServerSettings)}
    return {name: value for name, value in os.environ.items() if name not in private}
