import subprocess
import sys

import pytest
from installed import sites

from quire.cli.main import COMMANDS, main

site = pytest.fixture(sites)


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("quire 0.")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: quire {command}" in capsys.readouterr().out


def test_an_unknown_flag_is_wrong_usage_and_the_nearest_is_suggested(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["explain", "--max-num-seq", "3"])
    assert caught.value.code == 2
    assert "--max-num-seq; did you mean '--max-num-seqs'?" in capsys.readouterr().err


def test_an_unknown_command_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["explian"])
    assert caught.value.code == 2
    assert "invalid choice: 'explian'" in capsys.readouterr().err


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
        "try: status = main(sys.argv[1:])\n"
        "except SystemExit as end: status = end.code\n"
        "heavy = [n for n in ('torch', 'transformers', 'triton') if n in sys.modules]\n"
        "sys.exit(f'loaded {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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


def test_an_option_of_another_engine_names_ours(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--logits-processors=acme.steps:Loud"])
    assert "its name goes into the option samplers" in capsys.readouterr().err
