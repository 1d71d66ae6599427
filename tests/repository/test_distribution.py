"""The wheel and the source distribution hold what they should, and nothing else."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = PYPROJECT["tool"]["hatch"]["build"]["targets"]
PACKAGES = {PurePosixPath(path).name for path in TARGETS["wheel"]["packages"]}
CODE = {".py", ".typed", ".cpp", ".h", ".cu"}
PAGES, PAGE = "quire/server/pages/files", {".css", ".html", ".js"}  # of /ui and /docs
DEMO = {".json", ".safetensors", ".jinja"}
TABLES = {f"quire_{kind}_parsers/families.toml" for kind in ("tool", "reasoning")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_wheel_holds_the_packages_and_no_other_files(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        paths = [PurePosixPath(name) for name in wheel.namelist()]
    tops = {path.parts[0] for path in paths if not path.parts[0].endswith(".dist-info")}
    assert tops == PACKAGES
    strange = [
        str(path)
        for path in paths
        if path.parts[0] in PACKAGES
        and path.suffix not in (CODE | DEMO if path.parts[0] == "quire_demo" else CODE)
        and not (path.is_relative_to(PAGES) and path.suffix in PAGE)
        and str(path) not in TABLES
    ]
    assert not strange
    assert {str(path) for path in paths} >= TABLES
    typed = {path.parts[0] for path in paths if path.name == "py.typed"}
    assert typed == PACKAGES


def test_the_wheel_has_every_tracked_file_of_its_packages(built):
    listed = subprocess.run(
        ["git", "ls-files", *TARGETS["wheel"]["packages"]],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        packed = set(wheel.namelist())
    for package in TARGETS["wheel"]["packages"]:
        parent = PurePosixPath(package).parent
        for name in listed.stdout.splitlines():
            if name.startswith(f"{package}/"):
                assert str(PurePosixPath(name).relative_to(parent)) in packed


def test_the_source_distribution_can_be_built_and_tested_from(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        paths = [PurePosixPath(name) for name in archive.getnames()]
    tops = {path.parts[1] for path in paths if len(path.parts) > 1}
    assert tops == {*TARGETS["sdist"]["only-include"], "PKG-INFO", ".gitignore"}
    assert not [path for path in paths if "__pycache__" in path.parts or path.suffix == ".pyc"]
