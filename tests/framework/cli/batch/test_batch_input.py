"""The file of requests: its lines, what makes it another file, and names that occur twice."""

import io
import os
import sys
import threading

import pytest
from batch_parts import line_of
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.batch.batch_input import BatchInput
from quire.errors import BatchFileError


def opened(data, max_line_bytes=100):
    return BatchInput(io.BytesIO(data), "in.jsonl", max_line_bytes)


def lines(data, max_line_bytes=100):
    return [(line.number, line.data) for line in opened(data, max_line_bytes).lines()]


def test_empty_lines_are_left_out_and_counted():
    assert lines(b"a\n\n \r\nb\r\n\nc") == [(1, b"a\n"), (4, b"b\r\n"), (6, b"c")]
    assert lines(b"") == []


def test_a_byte_order_mark_is_no_part_of_the_first_line():
    assert lines(b"\xef\xbb\xbfa\nb\n") == [(1, b"a\n"), (2, b"b\n")]
    assert lines(b"\xef\xbb\xbf\nb\n") == [(2, b"b\n")]


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"x"))), st.booleans())
def test_lines_are_those_of_the_file_and_long_ones_are_not_held(pieces, ends):
    data = b"\n".join(pieces) + (b"\n" if ends else b"")
    data = data.removeprefix(b"\xef\xbb\xbf")
    expected = [
        (number, piece if len(piece) <= 8 else None)
        for number, piece in enumerate(data.split(b"\n"), 1)
        if piece.strip()
    ]
    found = [(n, None if line is None else line.rstrip(b"\n")) for n, line in lines(data, 8)]
    assert [n for n, _ in found] == [n for n, _ in expected]
    for (_, one), (_, other) in zip(found, expected, strict=True):
        assert one == other


def test_the_digest_is_that_of_all_bytes_and_lines_may_be_read_again():
    requests = opened(line_of("a") + b"\n" + line_of("b", x="y" * 200) + b"rest")
    checked = requests.check()
    assert (checked.num_requests, checked.last_number) == (3, 4)
    assert [line.number for line in requests.lines()] == [1, 3, 4]
    requests.check_unchanged(checked)
    for other in (b"", line_of("a"), line_of("a") + b"\n\n" + line_of("b") + b"rest"):
        assert opened(other).check().digest != checked.digest


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(line_of("a"))
    requests = BatchInput.open(str(path), 1000)
    checked = requests.check()
    with path.open("ab") as file:
        file.write(line_of("b"))
    assert len(list(requests.lines())) == 2
    with pytest.raises(BatchFileError, match="was changed while it was computed"):
        requests.check_unchanged(checked)
    requests.close()


def test_names_that_occur_twice_are_reported_with_their_lines():
    data = line_of("a") + line_of("b") + line_of("a") + b'{"custom_id": "b"}\n'
    with pytest.raises(BatchFileError, match="lines 1 and 3 both have 'a'\n  lines 2 and 4 both"):
        opened(data, 1000).check()


def test_of_many_equal_names_only_some_are_shown():
    with pytest.raises(BatchFileError) as caught:
        opened(line_of("a") * 50, 1000).check()
    assert str(caught.value).count("both have") == 10
    assert str(caught.value).endswith("...")


def test_a_file_that_is_not_there_is_an_error_of_ours(tmp_path):
    with pytest.raises(BatchFileError, match=r"none\.jsonl cannot be read: No such file"):
        BatchInput.open(str(tmp_path / "none.jsonl"), 100)


def test_a_pipe_can_be_read_twice(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=[line_of("a")])
    writer.start()
    requests = BatchInput.open(str(path), 1000)
    writer.join()
    assert requests.check().num_requests == len(list(requests.lines())) == 1
    requests.close()


def test_standard_input_can_be_read_twice(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line_of("a"))))
    requests = BatchInput.open("-", 1000)
    assert requests.check().num_requests == len(list(requests.lines())) == 1
    requests.close()
