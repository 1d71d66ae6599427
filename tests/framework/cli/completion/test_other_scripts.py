"""The completion scripts of zsh and fish name every command and option, and can be parsed."""

import shutil
import subprocess

import pytest

from quire.cli.completion import SHELLS, fish_script, zsh_script
from quire.cli.completion.command_table import KnownCommand, KnownFlag, KnownValues, command_table
from quire.cli.main import main


@pytest.fixture(scope="module")
def table():
    return command_table()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_a_script(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "quire" in capsys.readouterr().out


def test_another_shell_is_wrong_usage(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "SHELL must be one of bash, zsh, fish, got 'tcsh'" in capsys.readouterr().err


@pytest.mark.parametrize(("shell", "script"), [("zsh", zsh_script), ("fish", fish_script)])
def test_the_shell_can_parse_its_script(shell, script, table, tmp_path):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell}")
    path = tmp_path / "script"
    path.write_text(script.script(table))
    subprocess.run([program, "-n", str(path)], check=True)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("quire ser", ["serve"]),
        ("quire plugins ", ["doctor", "list", "show"]),
        ("quire serve --por", ["--port"]),
        ("quire run --por", []),
        ("quire serve --dtype fl", ["float16", "float32"]),
        ("quire completion ", ["bash", "fish", "zsh"]),
    ],
)
def test_fish_offers_what_is_meant(line, offered, table, tmp_path):
    program = shutil.which("fish")
    if program is None:
        pytest.skip("there is no fish")
    path = tmp_path / "quire.fish"
    path.write_text(fish_script.script(table))
    command = f"source {path}; complete -C '{line}'"
    done = subprocess.run([program, "-N", "-c", command], capture_output=True, text=True)
    assert [shown.split("\t")[0] for shown in done.stdout.splitlines()] == offered


def test_the_table_has_every_command_and_action(table):
    paths = [command.path for command in table]
    assert ("run",) in paths
    assert {("plugins",), ("plugins", "show"), ("bench", "serve")} <= {*paths}
    assert len(paths) == len({*paths})


SMALL = [
    KnownCommand(("bench",), "measure", {"serve": "a server's times"}),
    KnownCommand(
        ("bench", "serve"),
        "a server's times",
        {},
        (
            KnownFlag(("--kind", "-k"), "it's [so]: a", KnownValues(("x", "y:z"))),
            KnownFlag(("--loud",), "loud", None),
            KnownFlag(("--file",), "a file", KnownValues(are_files=True)),
        ),
        (KnownValues(("demo",), are_files=True),),
    ),
]


def test_the_script_of_zsh():
    text = zsh_script.script(SMALL)
    assert text.startswith("#compdef quire\n")
    assert "'bench:measure'" in text
    assert "serve) _quire_bench_serve ;;" in text
    assert r"'*--kind=[it'\''s \[so\]\: a]:value:(x y\:z)'" in text
    assert r"'*-k[it'\''s \[so\]\: a]:value:(x y\:z)'" in text
    assert "'*--loud[loud]'" in text
    assert "'*--file=[a file]:value:_files'" in text
    assert "'1: :{compadd demo; _files}'" in text


def test_the_script_of_fish():
    lines = fish_script.script(SMALL).splitlines()
    top = "test (count (commandline -opc)) -eq 1"
    at = "complete -c quire -n '__quire_at bench serve' "
    assert f"complete -c quire -n '{top}' -a bench -d 'measure'" in lines
    about = r"-d 'a server\'s times'"
    assert f"complete -c quire -n '__quire_ends bench' -a serve {about}" in lines
    assert at + r"-l kind -s k -x -a 'x y:z' -d 'it\'s [so]: a'" in lines
    assert at + "-l loud -d 'loud'" in lines
    assert at + "-l file -r -F -d 'a file'" in lines
    assert at + "-a 'demo'" in lines
    assert at + "-F" in lines
