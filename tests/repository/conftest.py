import importlib

import pytest


@pytest.fixture
def benchmark(request, monkeypatch):
    """Import a module of the folder of benchmarks that a test module names."""
    monkeypatch.syspath_prepend(str(request.module.FOLDER))
    return importlib.import_module
