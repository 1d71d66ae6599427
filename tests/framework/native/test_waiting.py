"""Beside compiled kernels torch's waiting threads sleep, unless the user wants otherwise."""

import os
import subprocess
import sys

import pytest
from cpp_compilers import NEEDS_COMPILER

from quire.native.waiting import DECIDING, set_policy, wait_asleep


def test_nobody_has_said_anything():
    environment = {"OMP_NUM_THREADS": "2"}
    set_policy(environment)
    assert environment == {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}


@pytest.mark.parametrize("name", DECIDING)
def test_what_the_user_says_stays(name):
    environment = {name: "7"}
    set_policy(environment)
    assert environment == {name: "7"}


def test_after_torch_it_is_too_late_and_said(caplog, monkeypatch):
    caplog.set_level("INFO")
    import torch  # noqa: F401

    for name in DECIDING:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    wait_asleep()
    assert dict(os.environ) == before
    assert "torch was imported before the engine" in caplog.text


def test_who_has_decided_is_not_told_what_to_set(caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    wait_asleep()
    assert caplog.text == ""


PLANNED = """
import os, sys
from quire.config import Settings
from quire.launch.composing import plan_composition
print(plan_composition(Settings.from_options({"model": "demo", "kernels": sys.argv[1]})).kernels)
print(os.environ.get("OMP_WAIT_POLICY"), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("kernels", "policy"), [pytest.param("native", "passive", marks=NEEDS_COMPILER),
                            ("torch", None)]
)  # fmt: skip
def test_an_engine_settles_it_by_its_kernels_before_torch_comes(kernels, policy):
    environment = {name: value for name, value in os.environ.items() if name not in DECIDING}
    command = [sys.executable, "-c", PLANNED, kernels]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [kernels, f"{policy} False"]
