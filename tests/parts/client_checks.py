"""Clients in environments of their own, and the scripts of `tests/clients` that check a server."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from package_environment import package_environment

FOLDER = Path(__file__).parents[1] / "clients"
TIMEOUT_S = 600
# Environment by environment, the script that runs in it.
CLIENTS = {
    "openai2": "openai_checks",
    "openai3": "openai_checks",
    "anthropic": "anthropic_checks",
    "ollama": "ollama_checks",
    "litellm": "litellm_checks",
    "langchain": "langchain_checks",
    "instructor": "instructor_checks",
    "pydantic-ai": "pydantic_ai_checks",
    "guidellm": "guidellm_checks",
    "lm-eval": "lm_eval_checks",
}
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


@dataclass
class Checked:
    """How the checks of a client ended.

    Attributes:
        package: Distribution of the client, with its version.
        passed: Names of the checks that passed.
        failures: Tracebacks of those that failed.
        missing: Routes that the server does not have, by the check that needs them.
        likelihoods: Context, continuation, log-likelihood and greedy flag of lm-eval's requests.
    """

    package: str = ""
    passed: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    likelihoods: list[tuple[str, str, float, bool]] = field(default_factory=list)


def run_checks(name: str, url: str, checkpoint: Path) -> Checked:
    """Run the checks of a client against a server.

    Args:
        name: Name of the environment.
        url: Address of the server.
        checkpoint: Folder of the model, for clients that need its tokenizer.

    Raises:
        UnreachableIndexError: Its environment has to be built, and cannot be.
        RuntimeError: The script did not come to its end.
    """
    programs = package_environment(FOLDER / "requirements", name)
    script = FOLDER / "scripts" / f"{CLIENTS[name]}.py"
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [programs / "python", script, url, checkpoint],
        env=clean | OFFLINE, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return _read(done.stdout)


def _read(output: str) -> Checked:
    checked = Checked()
    for line in output.splitlines():
        if not line.startswith("{"):
            continue  # the client's own words
        ended = json.loads(line)
        if "package" in ended:
            checked.package = f"{ended['package']} {ended['version']}"
        elif "likelihoods" in ended:
            checked.likelihoods = ended["likelihoods"]
        elif "missing" in ended:
            checked.missing[ended["check"]] = ended["missing"]
        elif ended["failure"] is not None:
            checked.failures[ended["check"]] = ended["failure"]
        else:
            checked.passed.append(ended["check"])
    return checked
