"""The tables of mutants fit the product, so that `make mutants` tries all of them."""

import re

import mutant_copy
import mutant_report
import pytest
import refit
from mutant_outcomes import NOTICED, SURVIVED
from mutant_tables import ROOT, Mutant, read_table, stale, table_names


@pytest.fixture(scope="module")
def mutants():
    return [mutant for name in table_names() for mutant in read_table(name)]


def test_every_mutants_text_stands_once_in_its_file(mutants):
    assert [(mutant.file, mutant.what) for mutant in stale(mutants)] == []


def test_every_mutant_changes_something_and_is_listed_once(mutants):
    assert [mutant.what for mutant in mutants if mutant.old == mutant.new] == []
    assert len({mutant.key for mutant in mutants}) == len(mutants)


def test_every_mutant_names_tests_that_exist(mutants):
    paths = {test.partition("::")[0] for mutant in mutants for test in mutant.tests}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_mutant_names_functions_and_classes_that_their_files_have(mutants):
    """A method is not looked up: a class may inherit it from a conformance kit."""
    tests = (test.partition("[")[0] for m in mutants for test in m.tests)
    named = {tuple(test.split("::")[:2]) for test in tests if "::" in test}
    assert [
        test
        for test in sorted(named)
        if not re.search(
            rf"^(def|class) {test[1].partition('[')[0]}\b",
            (ROOT / test[0]).read_text(),
            re.MULTILINE,
        )
    ] == []


def test_a_test_that_is_not_there_is_an_error_except_in_an_older_revision(tmp_path):
    (tmp_path / "test_a.py").touch()
    there, gone = "test_a.py::test_one", "test_b.py::test_two"
    assert mutant_copy.existing([there], tmp_path, None) == [there]
    assert mutant_copy.existing([there, gone], tmp_path, "HEAD") == [there]
    with pytest.raises(SystemExit, match=r"no test_b\.py::test_two"):
        mutant_copy.existing([there, gone], tmp_path, None)
    with pytest.raises(SystemExit, match=r"no test_b\.py::test_two"):
        mutant_copy.existing([gone], tmp_path, "HEAD")


def test_a_changed_mutant_is_another_one():
    mutant = Mutant("engine", "a.py", "x = 1", "x = 2", "what", ("tests",))
    other = Mutant("engine", "a.py", "x = 1", "x = 3", "what", ("tests",))
    assert mutant.key != other.key
    assert mutant.apply("x = 1\n") == "x = 2\n"
    assert mutant.apply("x = 1\nx = 1\n") is None


def test_shares_count_what_was_tried_and_the_rest_is_counted_apart():
    one = Mutant("engine", "a.py", "1", "2", "what", ("tests",))
    two = Mutant("engine", "a.py", "3", "4", "what", ("tests",))
    three = Mutant("engine", "a.py", "5", "6", "what", ("tests",), equivalent="nothing reads it")
    outcomes = {"before": {one.key: NOTICED, two.key: SURVIVED, three.key: SURVIVED}, "after": {}}
    row = mutant_report.row("engine", [one, two, three], outcomes)
    assert row == ["engine", "3", "1", "2", "1 of 2 (50%)", "-"]


def test_a_mutant_follows_its_text_to_the_file_that_has_it_now():
    text = 'file = "framework/quire/gone.py"\nold = "{}"\nnew = ""\nwhat = "moved"\n'
    moved = text.format("class KVCacheManager:")
    followed = moved.replace("quire/gone.py", "quire/engine/kv_cache/kv_cache_manager.py")
    assert refit.refitted(moved, "engine") == followed
    assert refit.refitted(followed, "engine") == followed
    assert refit.refitted(text.format("what no file has"), "engine") is None
