"""A Python child imports the same modules as its parent, and gets none of the server's options."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest

from quire.config import ServerSettings
from quire.process.children.python_child import child_environment, python_arguments

ECHO = """
import json, sys, tempfile

def main(arguments):
    print(json.dumps([arguments, sys.path, tempfile.__file__]))
"""


@pytest.fixture
def elsewhere(tmp_path):
    """A folder that must not be searched for modules."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("tempfile", "json"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported from here')")
    return folder


def test_it_has_the_parents_path_and_not_the_current_directory(tmp_path, elsewhere, monkeypatch):
    (tmp_path / "echo_module.py").write_text(ECHO)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = [sys.executable, *python_arguments("echo_module", ["a", "", "--b"])]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=True)
    arguments, path, tempfile = json.loads(done.stdout)
    assert arguments == ["a", "", "--b"]
    assert path == sys.path
    assert str(elsewhere) not in tempfile


def test_what_main_returns_is_the_exit_status(tmp_path, monkeypatch):
    (tmp_path / "seven_module.py").write_text("def main(arguments):\n    return 7")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = subprocess.run([sys.executable, *python_arguments("seven_module", [])], check=False)
    assert done.returncode == 7


@pytest.mark.parametrize("option", [option.name for option in fields(ServerSettings)])
def test_no_option_of_the_server_is_in_its_environment(monkeypatch, option):
    monkeypatch.setenv(f"QUIRE_{option.upper()}", "secret")
    monkeypatch.setenv("QUIRE_MAX_NUM_SEQS", "3")
    environment = child_environment()
    assert "secret" not in environment.values()
    assert environment["QUIRE_MAX_NUM_SEQS"] == "3"
