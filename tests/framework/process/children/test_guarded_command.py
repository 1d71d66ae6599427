"""Programs of others as children: they are run as they are, and die with their parent."""

import subprocess
import sys

from quire.process.children.guarded_command import guarded_arguments


def run(*command):
    return subprocess.run(
        guarded_arguments(command),
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "WORD": "yes"},
        start_new_session=True,
        timeout=60,
        check=False,
    )


def test_a_program_gets_its_arguments_and_environment_as_they_are():
    code = "import os, sys; print(sys.argv[1:], os.environ['WORD'])"
    done = run(sys.executable, "-c", code, "a b", "$HOME;", "")
    assert (done.stdout.strip(), done.returncode) == ("['a b', '$HOME;', ''] yes", 0)


def test_its_exit_code_is_that_of_the_program():
    assert run(sys.executable, "-c", "import sys; sys.exit(7)").returncode == 7


def test_signals_have_their_default_effect():
    done = run("sh", "-c", "kill -PIPE $$; echo survived")
    assert "survived" not in done.stdout


def test_a_program_that_does_not_exist_is_said():
    done = run("no-such-program")
    assert done.returncode == 1
    assert "no-such-program: No such file" in done.stderr
