"""Imports of torch by code that must not import it, found in a fresh Python process."""

import os
import subprocess
import sys


def imports_torch(code: str, *arguments: str) -> bool:
    """Run code in a process with the import path of this one, and return whether it imports torch.

    Args:
        code: Python statements, on one line or several.
        *arguments: `sys.argv[1:]` of the process.

    Raises:
        AssertionError: The code raises; the message is its traceback.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint('torch' in sys.modules)", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout.splitlines()[-1] == "True"
