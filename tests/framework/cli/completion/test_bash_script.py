"""The completion script of bash, in a real bash."""

import shutil
import subprocess

import pytest

from quire.cli.completion.bash_script import script
from quire.cli.completion.command_table import command_table

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_quire
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "quire.bash"
    path.write_text(script(command_table()))
    return path


@pytest.fixture
def complete(path, tmp_path):
    """Return what bash offers for words, of which the last is being typed."""

    def complete(*words):
        done = subprocess.run(
            ["bash", "--norc", "-c", COMPLETE, "bash", str(path), "quire", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.split()

    return complete


def test_commands_are_completed(complete):
    assert complete("ser") == ["serve"]
    assert {"run", "serve", "plugins", "bench", "help", "--version"} <= {*complete("")}


def test_actions_are_completed(complete):
    assert complete("plugins", "") == ["list", "show", "doctor", "--help"]
    assert complete("bench", "thr") == ["throughput"]
    assert complete("help", "bench", "thr") == ["throughput"]


def test_the_flags_of_the_command_are_completed(complete):
    assert complete("serve", "--por") == ["--port"]
    assert complete("run", "--por") == []
    assert complete("run", "hi", "--temp") == ["--temperature"]
    assert complete("bench", "serve", "--request-r") == ["--request-rate"]
    assert "--no-enable-lora" in complete("serve", "--no-")


def test_values_that_are_known_are_completed(complete):
    assert complete("serve", "--dtype", "fl") == ["float32", "float16"]
    assert complete("serve", "--dtype", "=", "bf") == ["bfloat16"]
    assert complete("serve", "--dtype", "=") == ["auto", "float32", "bfloat16", "float16"]
    assert complete("bench", "serve", "--endpoint", "") == ["completions", "chat"]


def test_registered_names_are_completed(complete):
    assert {"auto", "torch_sdpa", "cpu"} <= {*complete("run", "--attention-backend", "")}
    assert complete("serve", "--tool-call-parser", "herm") == ["hermes"]
    assert "torch_sdpa" in complete("plugins", "show", "torch_s")


def test_models_are_shipped_names_and_folders(complete, tmp_path):
    (tmp_path / "my-model").mkdir()
    assert {"demo", "my-model"} <= {*complete("serve", "")}
    assert {"demo", "my-model"} <= {*complete("serve", "-m", "")}


def test_files_are_completed_where_files_are_meant(complete, tmp_path):
    (tmp_path / "settings.yaml").touch()
    assert complete("serve", "--config", "sett") == ["settings.yaml"]
    assert complete("run", "--tools", "") == ["settings.yaml"]
    assert complete("serve", "--chat-template", "") == ["settings.yaml"]
    assert complete("serve", "--port", "") == []


def test_shells_are_completed(complete):
    assert complete("completion", "") == ["bash", "zsh", "fish"]


def test_a_word_that_is_a_command_too_changes_nothing(complete):
    assert complete("run", "serve", "--por") == []
