"""A copy of the repository, in which a mutant is applied and the tests that should notice it run.

Tests run in forks of a process that has imported torch and pytest, and nothing of quire: that saves
most of the time that a short test file takes.
"""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from mutant_outcomes import ABSENT, NOTICED, SURVIVED
from mutant_tables import ROOT, Mutant, changed_text

SOURCES = ["framework", *sorted(f"plugins/{path.name}" for path in ROOT.glob("plugins/*/"))]
PRELOADED = ["torch", "numpy", "triton.language", "safetensors.torch", "pytest", "msgspec"]
ENVIRONMENT = {  # as tests/conftest.py has it, but before torch is imported
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "TRITON_INTERPRET": "1",
    "PYTHONDONTWRITEBYTECODE": "1",  # what is not changed is compiled already
    "CI": "1",  # the same examples each time
}
TEST_TIMEOUT_S = 120  # for one test; one that hangs has noticed
RUN_TIMEOUT_S = 600
# Interrupted: a test file could not be imported. That notices a mutant, whose module may fail as it
# is imported; an environment in which it fails anyway is found by the run without a mutant.
EXIT_PASSED, EXIT_FAILED, EXIT_INTERRUPTED = range(3)
# A mutant of C++ may crash the tests, which notices it; SIGKILL is ours, for a run that hung.
CRASHES = tuple(
    -number
    for number in (
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
    )
)
LOG = "mutant.log"


class Copy:
    """A copy of the repository in which one mutant at a time is tried.

    Args:
        folder: Where it lies.
        revision: The commit that is copied; None: the working tree.
    """

    def __init__(self, folder: Path, revision: str | None) -> None:
        self.folder = folder
        self.revision = revision
        folder.mkdir(parents=True, exist_ok=True)
        names = [] if revision is None else [revision]
        command = ["git", "archive", *names] if names else ["tar", "-c", "--null", "-T", "-"]
        listed = b"" if names else _listed_files()
        packed = subprocess.run(command, cwd=ROOT, input=listed, check=True, capture_output=True)
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
            tar.extractall(folder, filter="data")
        self._roots = [str(folder / source) for source in SOURCES]
        subprocess.run([sys.executable, "-m", "compileall", "-q", *self._roots], check=True)
        os.environ.update(ENVIRONMENT)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def outcome(self, mutant: Mutant) -> str:
        """Try one mutant."""
        changed = changed_text(mutant, self.folder)
        if changed is None:
            return ABSENT
        path = self.folder / mutant.file
        original = path.read_text()
        path.write_text(changed)
        try:
            return SURVIVED if self.passes(mutant.tests, "-x") else NOTICED
        finally:
            path.write_text(original)

    def passes(self, tests: Sequence[str], *options: str) -> bool:
        """Run tests; whether all of them pass.

        Raises:
            SystemExit: They do not exist, or pytest could not run them.
        """
        there = existing(tests, self.folder, self.revision)
        arguments = [
            "-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=short",
            f"--timeout={TEST_TIMEOUT_S}", "-W", "ignore::pytest.PytestAssertRewriteWarning",
            *options, *there,
        ]  # fmt: skip
        run = self._context.Process(
            target=run_pytest, args=(str(self.folder), self._roots, arguments)
        )
        run.start()
        run.join(RUN_TIMEOUT_S)
        if run.exitcode is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.join()
        if run.exitcode not in (EXIT_PASSED, EXIT_FAILED, EXIT_INTERRUPTED, *CRASHES):
            log = (self.folder / LOG).read_text()
            raise SystemExit(f"pytest could not run {there} (exit {run.exitcode}):\n{log}")
        return run.exitcode == EXIT_PASSED


def existing(tests: Sequence[str], folder: Path, revision: str | None) -> list[str]:
    """Return the tests that a copy has; one of an older revision may lack some.

    Raises:
        SystemExit: It has none of them, or lacks some and is no older revision.
    """
    missing = [test for test in tests if not (folder / test.partition("::")[0]).exists()]
    if missing and (revision is None or len(missing) == len(tests)):
        raise SystemExit(f"there is no {', '.join(missing)}")
    return [test for test in tests if test not in missing]


def run_pytest(folder: str, roots: Sequence[str], arguments: Sequence[str]) -> None:
    """Run pytest in a copy, in this process, with its output in a file; exits with its status."""
    os.setsid()
    os.chdir(folder)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["PYTHONPATH"] = os.pathsep.join(roots)  # for the processes that tests start
    sys.path[:0] = roots
    pytest = sys.modules["pytest"]
    status = int(pytest.main(list(arguments)))
    sys.stdout.flush()
    os._exit(status)


def _listed_files() -> bytes:
    """Return the files that git knows or would take in, each with a null byte behind it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    names = [name for name in listed.split(b"\0") if name and (ROOT / os.fsdecode(name)).is_file()]
    return b"".join(name + b"\0" for name in names)
