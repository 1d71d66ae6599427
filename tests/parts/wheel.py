"""Build a distribution as its author would, and install it in a folder of its own; no network."""

import subprocess
import sys
from pathlib import Path


def build_and_install(source: Path, site: Path) -> Path:
    """Build the wheel of a source folder with hatchling, and let pip install it into `site`."""
    _run(source, "hatchling", "build", "-t", "wheel")
    (wheel,) = (source / "dist").glob("*.whl")
    _run(source, "pip", "install", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    return site


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
