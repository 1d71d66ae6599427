"""With compiled kernels torch's idle threads sleep, unless the user sets another policy."""

import os
import subprocess
import sys

import pytest
from cpp_compilers import NEEDS_COMPILER

from quire.native.waiting import USER_VARIABLES, set_policy, wait_asleep


def test_without_variables_of_the_user_the_policy_is_set():
    environment = {"OMP_NUM_THREADS": "2"}
    set_policy(environment)
    assert environment == {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}


@pytest.mark.parametrize("name", USER_VARIABLES)
def test_what_the_user_says_stays(name):
    environment = {name: "7"}
    set_policy(environment)
    assert environment == {name: "7"}


def test_after_torch_it_is_too_late_and_said(caplog, monkeypatch):
    caplog.set_level("INFO")
    import torch  # noqa: F401

    for name in USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    wait_asleep()
    assert dict(os.environ) == before
    assert "torch was imported before the engine" in caplog.text


def test_after_torch_nothing_is_logged_if_the_user_set_a_policy(caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    wait_asleep()
    assert caplog.text == ""


PLANNED = """
import os, sys
from quire.config import Settings
from quire.launch.composing import plan_composition
settings = Settings.from_options({"model": "demo", "kernels": sys.argv[1]})
print(plan_composition(settings).kernels.value)
print(os.environ.get("OMP_WAIT_POLICY"), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("kernels", "policy"), [pytest.param("native", "passive", marks=NEEDS_COMPILER),
                            ("torch", None)]
)  # fmt: skip
def test_an_engine_sets_it_by_its_kernels_before_torch_is_imported(kernels, policy):
    environment = {name: value for name, value in os.environ.items() if name not in USER_VARIABLES}
    command = [sys.executable, "-c", PLANNED, kernels]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [kernels, f"{policy} False"]
