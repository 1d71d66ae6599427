"""No line of the log, print or error of the product is made from a value that may be a key."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob("framework/quire/**/*.py"), *ROOT.glob("plugins/*/quire_*/**/*.py")]
SECRETS = {
    "admin_key", "api_key", "authorization", "bearer", "credentials", "key_digests", "launch_key",
    "password", "salt_key", "secret", "secrets", "token_secret",
}  # fmt: skip
WRITERS = {"print", "debug", "info", "warning", "error", "exception", "critical", "log"}


def shown(source):
    """Return the lines that log, print or raise something whose name says that it is a secret."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            arguments = node.exc.args
        elif isinstance(node, ast.Call) and name_of(node.func) in WRITERS:
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        else:
            continue
        names = {name_of(part) for argument in arguments for part in parts_of(argument)}
        if names & SECRETS:
            yield node.lineno


def parts_of(node):
    """Return a node and all nodes below it, but not what is only counted."""
    if isinstance(node, ast.Call) and name_of(node.func) == "len":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from parts_of(child)


def name_of(node):
    """Return the last part of a name, in small letters."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lower()
        case _:
            return None


def test_no_line_of_the_log_and_no_error_is_made_from_a_secret():
    found = [
        f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in shown(path.read_text())
    ]
    assert found == []
    assert len(FILES) > 500


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("logger.info('%s', settings.api_key)", True),
        ("logger.warning(f'the key {api_key} is wrong')", True),
        ("print(headers.authorization)", True),
        ("raise ValueError(f'{secret!r} is no key')", True),
        ("logger.info('set api_key to one')", False),
        ("logger.info('%s', account.name)", False),
        ("check(api_key)", False),
        ("raise ValueError(f'{len(secret)} bytes')", False),
    ],
)
def test_the_rule_finds_what_it_forbids(source, is_found):
    assert bool(list(shown(source))) is is_found
