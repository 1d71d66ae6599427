import ast
import inspect
import re

import pytest

from quire import errors
from quire.errors import InvalidRequestError, QuireError, RequestError, RequestFailedError

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, QuireError)
]


def test_there_are_no_other_errors_in_the_file():
    tree = ast.parse(inspect.getsource(errors))
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert defined == {kind.__name__ for kind in CLASSES}


def test_every_error_has_a_code_of_its_own():
    speaking = [kind for kind in CLASSES if kind is not InvalidRequestError]
    codes = [vars(kind).get("code") for kind in speaking]
    assert None not in codes
    assert len(set(codes)) == len(codes)


def test_a_wrong_value_has_the_code_of_wrong_requests():
    assert InvalidRequestError.code == RequestError.code == "invalid_request"


def test_codes_are_words_for_programs():
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code) for kind in CLASSES)


def test_the_tree_in_the_docstring_is_complete_and_true():
    parents = {}
    path = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"( *)[*+-] (\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 2
            path[depth:] = [found[2]]
            parents[found[2]] = path[depth - 1] if depth else "Exception"
    assert parents == {kind.__name__: kind.__base__.__name__ for kind in CLASSES}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_explains_itself_and_can_be_raised(kind):
    assert kind.__doc__.strip()
    with pytest.raises(QuireError, match="what, which, and the way out"):
        raise kind("what, which, and the way out")


def test_a_request_error_names_the_field_that_is_to_blame():
    assert RequestFailedError("broken").param is None
    assert InvalidRequestError("broken", param="top_p").param == "top_p"
