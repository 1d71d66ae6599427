"""What a torch-free `describe` may use costs no torch."""

import subprocess
import sys

import pytest

import quire.layers


def test_config_modules_do_not_load_torch():
    code = (
        "import sys, quire.layers, quire.layers.attention.rope_parameters; "
        "from pkgutil import resolve_name; from quire_models.plugin import FAMILIES; "
        "[resolve_name('quire_models.readers.' + family.reader) for family in FAMILIES]; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_is_there():
    for name in quire.layers.__all__:
        assert getattr(quire.layers, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Atention"):
        quire.layers.Atention  # noqa: B018
