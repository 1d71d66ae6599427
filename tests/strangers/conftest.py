import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from acme_parts import Quire, write_acme_checkpoint

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def acme_site(tmp_path_factory):
    """The stranger's distribution: built as a wheel, and installed in a folder of its own."""
    place = tmp_path_factory.mktemp("acme")
    shutil.copytree(HERE / "acme", place / "source")
    run(place / "source", "hatchling", "build", "-t", "wheel")
    (wheel,) = (place / "source" / "dist").glob("acme_quire-1.2.0-*.whl")
    target = str(place / "site")
    run(place, "pip", "install", "--no-deps", "--no-index", "--target", target, str(wheel))
    return place / "site"


def run(folder, *command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


@pytest.fixture(scope="session")
def acme(acme_site):
    """`quire` beside which the stranger's distribution is installed."""
    return Quire(acme_site)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A tiny checkpoint of the stranger's architecture."""
    return write_acme_checkpoint(tmp_path_factory.mktemp("checkpoint") / "acme-tiny")
