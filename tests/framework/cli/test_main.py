import os
import subprocess
import sys

import pytest
from installed import sites

from quire.cli.main import main

site = pytest.fixture(sites)


def test_an_error_of_ours_is_one_line_with_its_code_and_status_1(capsys):
    assert main(["explain", "./no/such/folder"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "quire: no such model folder: ./no/such/folder [checkpoint_not_found]"


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["plugins", "--help"],
        ["plugins", "list"],
        ["plugins", "show", "torch_sdpa"],
        ["plugins", "doctor"],
        ["explain", "demo"],
        ["serve", "--help"],
        ["run", "--help"],
    ],
)
def test_light_commands_do_not_load_torch(argv):
    code = (
        "import sys; from quire.cli.main import main\n"
        "status = main(sys.argv[1:])\n"
        "heavy = [n for n in ('torch', 'transformers', 'triton') if n in sys.modules]\n"
        "sys.exit(f'loaded {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "argv", [["serve", "nosuchmodel", "--port", "0"], ["run", "-m", "nosuchmodel", "hi"]]
)
def test_a_model_that_is_nowhere_is_reported_before_torch_is_loaded(argv):
    code = (
        "import sys; from quire.cli.main import main\n"
        "status = main(sys.argv[1:])\n"
        "sys.exit(f'status {status}, torch: {\"torch\" in sys.modules}')"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert lines[0] == "quire: there is no model 'nosuchmodel' [checkpoint_not_found]"
    assert [line.split(":")[0].strip() for line in lines[1:4]] == [
        "It is no checkpoint that a plugin ships",
        "It is no folder",
        "As the id of a model on a hub",
    ]
    assert lines[4:] == ["status 1, torch: False"]


def test_the_reader_of_a_pipe_may_stop_early():
    code = (
        "import sys; from quire.cli.main import main; sys.exit(main(['plugins', 'list', '--json']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child.stdout.close()
    error = child.stderr.read()
    child.stderr.close()
    assert child.wait() == 141
    assert b"Traceback" not in error


def test_a_command_that_is_interrupted_has_the_status_of_a_shell(site):
    site.install("acme", "raise KeyboardInterrupt")
    assert main(["plugins", "list"]) == 130


def test_a_command_prints_its_stacks_on_a_signal_and_goes_on():
    code = """
import os, signal, sys
from quire.cli import plugins
from quire.cli.main import main

listed = plugins.run
plugins.run = lambda arguments: (os.kill(os.getpid(), signal.SIGUSR1), listed(arguments))[1]
sys.exit(main(["plugins", "list"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Current thread" in done.stderr
    assert "quire_samplers" in done.stdout


def test_wrong_usage_is_two_lines_and_status_2(capsys):
    assert main(["run", "--temprature", "1", "hi"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "quire: there is no option '--temprature'; did you mean '--temperature'?",
        "see `quire run --help`",
    ]


def test_a_value_that_is_not_allowed_is_wrong_usage_and_says_where_it_was_set(capsys):
    assert main(["explain", "--max-num-seqs", "-1"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "quire: max_num_seqs must be at least 0, got -1",
        "max_num_seqs is set by --max-num-seqs; see `quire explain --help`",
    ]


@pytest.mark.parametrize("module", ["quire.cli.commands", "quire.plugins.registry"])
def test_an_interrupt_while_modules_are_imported_is_no_traceback(module):
    """Only modules that Python has loaded anyway are imported before interrupts are expected."""
    code = f"""
import builtins, os, signal, sys

imported = builtins.__import__

def interrupting(name, *rest):
    if name == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)
    return imported(name, *rest)

from quire.cli.main import main
builtins.__import__ = interrupting
sys.exit(main(["plugins", "list"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_little_is_imported_before_interrupts_are_expected():
    code = (
        "import sys; before = {*sys.modules}; import quire.cli.main\n"
        "print(*sorted({*sys.modules} - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"argparse", "logging", "importlib.metadata"} & {*done.stdout.split()}


def shell(command, **environment):
    """Run `quire` with the arguments and redirections of a shell."""
    return subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m quire.cli {command}'],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_full_disk_behind_standard_output_is_one_line():
    done = shell("plugins list > /dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "quire: the output cannot be written: No space left on device [output_failed]\n",
    )


def test_standard_output_may_be_closed():
    assert (shell("plugins list >&-").returncode, shell("plugins list >&-").stderr) == (0, "")


def test_errors_are_not_printed_on_standard_output_when_standard_error_is_closed():
    done = shell("serv 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


def test_characters_that_a_terminal_cannot_show_are_escaped():
    done = shell("config show --served-model-name 日本", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert r'served-model-name: "\u65e5\u672c"' in done.stdout


def test_a_variable_that_is_not_allowed_is_wrong_usage_of_two_lines(monkeypatch, capsys):
    monkeypatch.setenv("QUIRE_LOG_LEVEL", "loud")
    assert main(["plugins", "list"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "quire: QUIRE_LOG_LEVEL must be one of debug, info, warning, error, critical, got 'loud'",
        "set it to one of them, or unset QUIRE_LOG_LEVEL",
    ]
