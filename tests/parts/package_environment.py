"""Environments of Python packages that the suite does without, built once and kept.

A folder of requirements has, for each environment, `NAME.in` with the packages that are meant and
`NAME.txt` with everything pinned, as `pip freeze` prints it. With `QUIRE_TEST_PACKAGES=latest` the
first is installed instead. Environments are kept in `QUIRE_TEST_ENVIRONMENTS`, or in the user's
cache, and are built again when their requirements change.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

FOLDER_VARIABLE = "QUIRE_TEST_ENVIRONMENTS"
VERSIONS_VARIABLE = "QUIRE_TEST_PACKAGES"
INSTALL_TIMEOUT_S = 900
PROBE_TIMEOUT_S = 60
READY = "ready"


class UnreachableIndexError(Exception):
    """The package index cannot be reached."""


def package_environment(folder: Path, name: str) -> Path:
    """Return the folder of the programs of an environment, which is built if it is missing.

    Args:
        folder: Folder of the requirements.
        name: Name of the environment.

    Raises:
        UnreachableIndexError: It has to be built, and there is nothing to build it from.
        RuntimeError: A package cannot be installed.
    """
    requirements = folder / f"{name}.{'in' if wants_latest() else 'txt'}"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    environment = _cache() / f"{name}-{digest}"
    environment.mkdir(parents=True, exist_ok=True)
    with (environment / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, or its process ends
        if not (environment / READY).exists():
            _check_index()
            venv.create(environment, clear=False, with_pip=False)
            _install(environment, requirements)
            (environment / READY).touch()
    return environment / "bin"


def wants_latest() -> bool:
    """Whether the newest versions are tested, instead of the pinned ones."""
    return os.environ.get(VERSIONS_VARIABLE, "pinned") == "latest"


def _cache() -> Path:
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "quire-tests"


def _check_index() -> None:
    done = _pip(["index", "versions", "--retries", "1", "--timeout", "10", "pip"], PROBE_TIMEOUT_S)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise UnreachableIndexError(f"the package index cannot be reached: {last}")


def _install(environment: Path, requirements: Path) -> None:
    python = str(environment / "bin" / "python")
    done = _pip(["--python", python, "install", "--quiet", "--requirement", str(requirements)])
    if done.returncode:
        raise RuntimeError(f"{requirements.name} cannot be installed:\n{done.stderr[-3000:]}")


def _pip(
    arguments: list[str], timeout_s: float = INSTALL_TIMEOUT_S
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
