"""Distributions in a folder as pip installs them: modules and metadata, found on sys.path."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import pytest


def write_distribution(
    folder: Path,
    name: str,
    entry_points: dict[str, str],
    version: str = "1.0",
    *,
    group: str = "quire",
    requires: Sequence[str] = (),
    **modules: str,
) -> Path:
    """Write a distribution whose modules (by name, `__` for a dot) have the given source.

    Args:
        folder: Folder to write to.
        name: Name of the distribution.
        entry_points: References by name; if empty, no file of entry points is written.
        version: Version of the distribution.
        group: Group of the entry points.
        requires: Requirements of the distribution.
        modules: Source of the modules, by name.

    Returns:
        The folder, to be put on sys.path or PYTHONPATH.
    """
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    facts = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    facts += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join([*facts, ""]))
    if entry_points:
        lines = [f"{point} = {reference}" for point, reference in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    for module, source in modules.items():
        path = folder.joinpath(*module.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
    return folder


class Site:
    """A folder on this process's sys.path, for distributions that a test installs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def install(self, name: str, source: str, *, module: str = "", point: str = "") -> None:
        """Install a distribution of one plugin module, which has its name by default."""
        module = module or name.replace("-", "_")
        write_distribution(self.folder, name, {point or module: module}, **{module: source})


def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a site that is searched first; modules imported from it are removed afterwards."""
    site = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site.folder))
    before = set(sys.modules)
    yield site
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]
