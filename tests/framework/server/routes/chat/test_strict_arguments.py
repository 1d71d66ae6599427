"""Arguments that an API carries as an object are strict JSON, otherwise as written."""

import pytest

from quire.errors import RequestFailedError
from quire.server.routes.chat.strict_arguments import strict_arguments


@pytest.mark.parametrize(
    "text", ['{"a": 1.50}', f'{{"a": [{"9" * 5000}]}}', '{"a": "\\ud800"}', '{"\\ud800": 1}', " {}"]
)
def test_json_stays_as_it_is(text):
    assert strict_arguments(text) == text


def test_what_json_has_not_is_null_beside_numbers_of_any_digits():
    digits = "9" * 5000
    found = strict_arguments(f'{{"a": NaN, "b": [-Infinity, "NaN"], "c": {digits}}}')
    assert found == f'{{"a": null, "b": [null, "NaN"], "c": {digits}}}'


@pytest.mark.parametrize("text", ["", "[1]", "1", '{"a": }', "{} x"])
def test_what_is_no_object_fails_the_request(text):
    with pytest.raises(RequestFailedError, match="no JSON object"):
        strict_arguments(text)
