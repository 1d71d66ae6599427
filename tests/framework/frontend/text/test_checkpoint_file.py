"""A JSON file beside a checkpoint is an object, absent, or an error that names it."""

import pytest

from quire.errors import CheckpointCorruptError
from quire.frontend.text.checkpoint_file import read_json_object


def test_a_file_that_is_not_there_is_empty(tmp_path):
    assert read_json_object(tmp_path / "no.json") == {}
    assert read_json_object(tmp_path) == {}


def test_an_object_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": "é"}', "utf-8")
    assert read_json_object(path) == {"a": "é"}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"null", b"3", b'"a"', b"\xff\xfe", b"[" * 200_000],
)
def test_anything_else_is_named(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointCorruptError, match=r"broken\.json"):
        read_json_object(path)
