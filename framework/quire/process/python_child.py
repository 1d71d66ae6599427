"""A Python child runs the parent's quire: its import path comes first, and no secret comes along.

`python -m` would put the current directory in front of everything, and a path that is set after
quire was imported would leave the child with another quire than its parent's.
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
    """Return what follows `python` to call the `main` of a module with some arguments."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return ["-P", "-c", _BOOT.format(module=module), str(len(path)), *path, *arguments]


def child_environment() -> dict[str, str]:
    """Return our environment without the server's options: its key is nobody else's."""
    private = {ENVIRONMENT_PREFIX + option.name.upper() for option in fields(ServerSettings)}
    return {name: value for name, value in os.environ.items() if name not in private}
