"""The checks of a conformance kit, counted from 1 in each of its functions.

A check is an assertion, or a call of a function that asserts. Each is worth something only if a
broken plugin exists that this very check rejects; a table of such plugins names the function and
the check, and is compared with what the kit contains.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

REJECTIONS = (AssertionError, pytest.fail.Exception)
ASSERTING = ("_check", "check_blocks", "assert_")  # how names of asserting functions begin


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a function.

    Attributes:
        function: Qualified name in its module, such as `Contract.test_it_works`.
        number: From 1, in the order of the lines.
    """

    function: str
    number: int

    def __str__(self) -> str:
        return f"{self.function}, check {self.number}"


def checks(*modules: ModuleType) -> set[Check]:
    """Return all checks in some modules."""
    return {
        Check(name, number)
        for module in modules
        for name, function in _functions_of(module)
        for number, _ in enumerate(_statements(function), start=1)
    }


def rejecting(run: Callable[[], Any], *modules: ModuleType) -> set[Check]:
    """Run a test of a kit that must fail; return the checks that rejected it.

    These are the assertion that was wrong, and the calls within the kit that led to it.
    """
    with pytest.raises(REJECTIONS) as caught:
        run()
    found = (_check_at(frame, line, modules) for frame, line in _frames(caught.value))
    return {check for check in found if check is not None}


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _check_at(frame: FrameType, line: int, modules: Iterable[ModuleType]) -> Check | None:
    module = sys.modules.get(frame.f_globals.get("__name__", ""))
    if module not in modules:
        return None
    for name, function in _functions_of(module):
        if not _is_code_of(frame.f_code, function):
            continue
        for number, statement in enumerate(_statements(function), start=1):
            if statement.lineno <= line <= (statement.end_lineno or line):
                return Check(name, number)
    return None


@cache
def _functions_of(module: ModuleType) -> list[tuple[str, ast.FunctionDef]]:
    return list(_functions(ast.parse(inspect.getsource(module)), ""))


def _is_code_of(code: CodeType, function: ast.FunctionDef) -> bool:
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    return code.co_name == function.name and code.co_firstlineno == first


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """Return the checks of a function, those of functions within it excluded."""
    found: list[ast.stmt] = []
    for child in function.body:
        found += _checks_in(child)
    return sorted(found, key=lambda statement: statement.lineno)


def _checks_in(statement: ast.stmt) -> Iterator[ast.stmt]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return
    if _is_check(statement):
        yield statement
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield from _checks_in(child)


def _is_check(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return True
    if isinstance(statement, ast.Raise):
        return "AssertionError" in ast.unparse(statement)
    if isinstance(statement, ast.With):
        return any("raises" in ast.unparse(item.context_expr) for item in statement.items)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    called = ast.unparse(statement.value.func).rpartition(".")[2]
    return called.startswith(ASSERTING)


class AskedCases:
    """The cases that a kit gives pytest for one argument; it stands for pytest's metafunc."""

    def __init__(self, name: str) -> None:
        self.fixturenames = [name]
        self.cases: list[Any] | None = None

    def parametrize(self, name: str, cases: Iterable[Any], ids: Any) -> None:
        """Keep the cases."""
        assert [name] == self.fixturenames
        self.cases = list(cases)
