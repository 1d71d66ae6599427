"""The pytest plugin imports nothing heavy, and its fixture returns the installed plugins."""

import subprocess
import sys


def test_the_fixture_has_the_installed_plugins(quire_registries):
    assert "torch_sdpa" in quire_registries.attention_backends


def test_loading_the_pytest_plugin_imports_nothing_of_weight():
    code = "import sys, quire.testing.plugin; print(sorted(set(sys.modules) & set(sys.argv[1:])))"
    heavy = [
        "torch",
        "pluggy.hookspecs",
        "quire.plugins.loading",
        "quire.hookspecs",
        "transformers",
    ]
    ran = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True)
    assert ran.stdout.strip() == "[]", ran.stderr
