"""Deferred modules: found at once, executed with their first use, once, and as if imported then."""

import importlib
import sys
import threading
from types import ModuleType

import pytest

from quire.process.deferred_modules import DeferredModules

PACKAGE = "acme_deferred"
FILES = {
    "__init__": "import acme_log\nacme_log.executed.append(__name__)\n",
    "plain": "import acme_log\nacme_log.executed.append(__name__)\nvalue = 7\n",
    "package/__init__": (
        "import acme_log\nacme_log.executed.append(__name__)\n"
        "from acme_deferred.package import inner\nvalue = inner.value\n"
    ),
    "package/inner": "import acme_log\nacme_log.executed.append(__name__)\nvalue = 8\n",
    "package/other": "import acme_log\nacme_log.executed.append(__name__)\nvalue = 9\n",
    "names": "import acme_log\ndef __getattr__(name):\n    return f'made {name}'\n",
    "broken": "import acme_log\nacme_log.executed.append(__name__)\nraise ImportError('no luck')\n",
    "compiler": "import acme_log\nacme_log.executed.append(__name__)\n",
}
DEFERRED = ("plain", "package", "names", "broken")


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """Names of the modules of a package whose code ran, in order."""
    log = ModuleType("acme_log")
    log.executed = []
    monkeypatch.setitem(sys.modules, "acme_log", log)
    for name, text in FILES.items():
        path = tmp_path / PACKAGE / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield log.executed
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def deferred(executed):
    made = DeferredModules([f"{PACKAGE}.{name}" for name in DEFERRED], [f"{PACKAGE}.compiler"])
    made.install()
    yield made
    if made in sys.meta_path:
        sys.meta_path.remove(made)


def names(*modules):
    return [f"{PACKAGE}.{name}" if name else PACKAGE for name in modules]


def test_an_import_of_a_deferred_module_executes_nothing_of_it(executed, deferred):
    from acme_deferred import plain

    importlib.import_module(f"{PACKAGE}.plain")
    assert plain is sys.modules[f"{PACKAGE}.plain"]
    assert plain.__spec__.name == plain.__name__ == f"{PACKAGE}.plain"
    assert executed == names("")
    assert deferred.pending == names("plain")


def test_the_first_access_executes_it_once(executed, deferred):
    from acme_deferred import plain

    assert (plain.value, plain.value) == (7, 7)
    assert executed == names("", "plain")
    assert type(plain) is ModuleType
    assert deferred.pending == []


def test_importing_a_name_from_it_executes_it(executed, deferred):
    from acme_deferred.plain import value

    assert value == 7
    assert executed == names("", "plain")


def test_listing_its_names_executes_it(executed, deferred):
    from acme_deferred import plain

    assert "value" in dir(plain)
    assert executed == names("", "plain")


def test_a_missing_name_is_an_attribute_error(executed, deferred):
    from acme_deferred import plain

    with pytest.raises(AttributeError, match=r"acme_deferred\.plain.*'nothing'"):
        _ = plain.nothing


def test_names_that_a_module_makes_itself_are_found(executed, deferred):
    from acme_deferred import names as module

    assert module.anything == "made anything"


def test_an_import_below_a_deferred_package_executes_the_package_first(executed, deferred):
    import acme_deferred.package

    assert executed == names("")
    import acme_deferred.package.other

    assert acme_deferred.package.other.value == 9
    assert executed == names("", "package", "package.inner", "package.other")


def test_a_module_that_its_package_imports_is_executed_once(executed, deferred):
    import acme_deferred.package.inner

    assert executed == names("", "package", "package.inner")
    assert acme_deferred.package.inner is sys.modules[f"{PACKAGE}.package.inner"]
    assert acme_deferred.package.inner.__spec__.loader.name == f"{PACKAGE}.package.inner"
    assert acme_deferred.package.value == 8


def test_a_dependent_executes_all_that_was_imported_and_ends_the_deferral(executed, deferred):
    for module in names("package", "plain", "compiler"):
        importlib.import_module(module)
    assert executed == names("", "package", "package.inner", "plain", "compiler")
    with pytest.raises(ImportError, match="no luck"):
        importlib.import_module(f"{PACKAGE}.broken")  # it was not imported before


def test_an_error_of_its_code_is_raised_at_each_use(executed, deferred):
    from acme_deferred import broken

    for _ in range(2):
        with pytest.raises(ImportError, match="no luck"):
            _ = broken.value
    assert executed == names("", "broken", "broken")
    assert deferred.pending == names("broken")


def test_threads_that_use_it_at_once_see_it_complete(executed, deferred, tmp_path):
    slow = tmp_path / PACKAGE / "plain.py"
    slow.write_text(f"import time\n{FILES['plain'].replace('value', 'time.sleep(0.1); value')}")
    from acme_deferred import plain

    found = []
    threads = [threading.Thread(target=lambda: found.append(plain.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [7] * 4
    assert executed == names("", "plain")


def test_modules_that_are_imported_already_stay_as_they_are(executed):
    from acme_deferred import plain

    made = DeferredModules(names("plain"))
    made.install()
    try:
        assert importlib.import_module(f"{PACKAGE}.plain") is plain
        assert (made.pending, type(plain)) == ([], ModuleType)
    finally:
        sys.meta_path.remove(made)
