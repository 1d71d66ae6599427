"""The check of probes rejects those that a part must not have."""

import sys

import pytest

from quire.testing.probes import check_probe

PROBES = """
def runs():
    return None

def has_no_compiler():
    return "there is no compiler"

def is_right():
    return True

def loads_torch():
    import torch

def breaks():
    raise KeyError("compiler")
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "acme_probes.py").write_text(PROBES)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


def test_a_part_may_have_no_probe():
    check_probe(None)


@pytest.mark.parametrize("name", ["runs", "has_no_compiler"])
def test_a_probe_returns_a_reason_or_none(name):
    check_probe(f"acme_probes:{name}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("is_right", "returned True"),
        ("loads_torch", "imports torch"),
        ("breaks", "KeyError: 'compiler'"),
        ("missing", "has no attribute 'missing'"),
    ],
)
def test_a_wrong_probe_is_rejected(name, message):
    with pytest.raises(AssertionError, match=message):
        check_probe(f"acme_probes:{name}")
