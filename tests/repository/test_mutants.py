"""The tables of mutants fit the product, so that `make mutants` tries all of them."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/mutants/run.py"


@pytest.fixture(scope="module")
def mutants():
    """The script, which is no module of any package."""
    spec = importlib.util.spec_from_file_location("mutants_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(mutants):
    return [mutant for room in mutants.rooms() for mutant in mutants.read_room(room)]


def test_every_mutants_text_stands_once_in_its_file(mutants, tables):
    assert [(mutant.file, mutant.what) for mutant in mutants.stale(tables)] == []


def test_every_mutant_changes_something_and_is_listed_once(tables):
    assert [mutant.what for mutant in tables if mutant.old == mutant.new] == []
    assert len({mutant.key for mutant in tables}) == len(tables)


def test_every_mutant_names_tests_that_exist(tables):
    paths = {test.partition("::")[0] for mutant in tables for test in mutant.tests}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_a_changed_mutant_is_another_one(mutants):
    mutant = mutants.Mutant("engine", "a.py", "x = 1", "x = 2", "what", ("tests",))
    other = mutants.Mutant("engine", "a.py", "x = 1", "x = 3", "what", ("tests",))
    assert mutant.key != other.key
    assert mutant.apply("x = 1\n") == "x = 2\n"
    assert mutant.apply("x = 1\nx = 1\n") is None
