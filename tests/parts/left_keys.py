"""Files of keys that engines have written for one start, and left behind when they were killed."""

import subprocess
import sys
from pathlib import Path

from quire.process.launch_key import LaunchKey

PROGRAM = """
import os, signal, sys
from quire.process.start_key import StartKey

kept = StartKey(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


def key_left_in(file: Path) -> str:
    """Start an engine's key, kill its process, and return the digits that are left in the file."""
    subprocess.run([sys.executable, "-c", PROGRAM, str(file)], check=False)
    return LaunchKey.read(file, 0.0).text
