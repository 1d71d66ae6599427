"""Texts of JSON, and names in JSON pointers."""

import pytest

from quire_structured_output.schemas.json_text import in_pointer, parse_json


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", '{"minimum": Infinity}', "", "{'a': 1}"])
def test_what_is_not_json_is_an_error_even_if_python_writes_it(text):
    with pytest.raises(ValueError, match=r"is not a JSON number|line 1 column"):
        parse_json(text)


def test_a_name_with_slashes_and_tildes_is_one_part_of_a_pointer():
    assert in_pointer("a/b~c~1") == "a~1b~0c~01"
