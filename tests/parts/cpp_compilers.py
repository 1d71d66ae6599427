"""Machines with another C++ compiler, or none: what CXX says, and a process that obeys it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from quire.native.availability import native_unavailable_reason

NEEDS_COMPILER = pytest.mark.skipif(
    native_unavailable_reason() is not None,
    reason=f"no compiled kernels here: {native_unavailable_reason()}",
)
COMPLAINT = "error: this compiler is out of order"
BROKEN = {  # what stands where a compiler should
    "fails": f"#!/bin/sh\necho '{COMPLAINT}' >&2\nexit 3\n",
    "fails to compile": (  # and says what, as compilers do: no two complaints are the same
        "#!/bin/sh\n"
        "[ \"$1\" = --version ] && echo 'Broken 1.0' && exit 0\n"
        f"echo \"in $*:\" >&2\necho '{COMPLAINT}' >&2\nexit 3\n"
    ),
    "makes garbage": (
        "#!/bin/sh\n"
        "[ \"$1\" = --version ] && echo 'Broken 2.0' && exit 0\n"
        'while [ $# -gt 1 ]; do shift; [ "$prev" = -o ] && break; prev="$1"; done\n'
        'for out; do :; done\necho rubbish > "$out"\n'
    ),
    "is killed": (
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Broken 3.0' && exit 0\nkill -KILL $$\n"
    ),
}


def broken_compiler(how: str, folder: Path) -> str:
    """Write a compiler that does not do what it should; returns what to set CXX to."""
    script = folder / "broken-c++"
    script.write_text(BROKEN[how])
    script.chmod(0o755)
    return str(script)


def counting_compiler(folder: Path) -> tuple[str, Path]:
    """Write a compiler that works and notes each source it compiles; returns CXX and the notes."""
    script, notes = folder / "counting-c++", folder / "notes"
    real = shutil.which("g++") or shutil.which("c++")
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *" -o "*) echo compiled >> {notes};; esac\nexec {real} "$@"\n'
    )
    script.chmod(0o755)
    return str(script), notes


def run_python(code: str, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run code in a process of its own, which has imported nothing yet."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
