import shutil
from pathlib import Path

import pytest
from acme_parts import Quire, write_acme_checkpoint
from wheel import build_and_install

HERE = Path(__file__).parent
collect_ignore = ["acme"]  # its own tests run separately, as a third party runs them


@pytest.fixture(scope="session")
def acme_site(tmp_path_factory):
    """Folder with the third-party distribution, built as a wheel and installed."""
    place = tmp_path_factory.mktemp("acme")
    shutil.copytree(HERE / "acme", place / "source", ignore=shutil.ignore_patterns("__pycache__"))
    return build_and_install(place / "source", place / "site")


@pytest.fixture(scope="session")
def acme(acme_site):
    """The command `quire` with the third-party distribution installed."""
    return Quire(acme_site)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A tiny checkpoint of the third-party architecture."""
    return write_acme_checkpoint(tmp_path_factory.mktemp("checkpoint") / "acme-tiny")
