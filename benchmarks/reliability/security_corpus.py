"""R16: the tests of the attacks that docs/security.md lists, as usual and under `python -OO`."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from row import Limits, Measured

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
ROW = re.compile(r"\| (S\d+) \|.*\|([^|]*)\|$", re.MULTILINE)
TIMEOUT_S = 3600.0
TEST_TIMEOUT_S = 300


def listed() -> dict[str, list[str]]:
    """Return the test files and folders of each attack."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {attack: re.findall(r"`([^`]+)`", tests) for attack, tests in rows}


def security_corpus(limits: Limits) -> Measured:
    """Run all of them twice; a test that fails once is a failure."""
    del limits
    attacks = listed()
    paths = sorted({path for tests in attacks.values() for path in tests})
    usual, optimized = (_run(paths, level) for level in ("", "2"))
    num_tested = sum(bool(tests) for tests in attacks.values())
    text = (
        f"{usual[0]:,} tests of {num_tested} of {len(attacks)} attacks pass, {usual[1]} fail; "
        f"under `-OO` {optimized[0]:,} and {optimized[1]}"
    )
    return Measured(text, usual[1] == optimized[1] == 0 and min(usual[0], optimized[0]) > 1000)


def _run(paths: Iterable[str], optimization: str) -> tuple[int, int]:
    """Return how many tests pass, and how many fail or cannot be run."""
    environment = os.environ | {"PYTHONOPTIMIZE": optimization}
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider",
        "-n", str(os.cpu_count()), "--dist", "worksteal", "--timeout", str(TEST_TIMEOUT_S),
        "-W", "ignore::pytest.PytestConfigWarning",
        *(f"tests/{path}" for path in paths),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    print(done.stdout[-3000:], flush=True)
    last = done.stdout.strip().splitlines()[-1]
    passed, failed, errors = (
        int(found[1]) if (found := re.search(rf"(\d+) {word}", last)) else 0
        for word in ("passed", "failed", "error")
    )
    return passed, failed + errors + (done.returncode not in (0, 1))
