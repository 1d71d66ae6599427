"""The file of results says what is done; what is no result of the batch is never touched."""

import os
import sys

import msgspec
import pytest

from quire.cli.batch.batch_input import CheckedInput
from quire.cli.batch.batch_lines import BatchFault, BatchResponse, BatchResult
from quire.cli.batch.batch_output import BatchOutput, Existing, batch_id_of
from quire.errors import BatchFileError

CHECKED = CheckedInput("d1", 9, 9)
BATCH = batch_id_of(CHECKED, "model")


def opened(path, existing=Existing.CONTINUE, batch=BATCH, checked=CHECKED):
    return BatchOutput.open(str(path), batch, checked, existing)


def num_before(path, existing=Existing.CONTINUE):
    output = opened(path, existing)
    output.close()
    return output.num_before


def written(path, *numbers, failed=()):
    """Write results; return the file's content."""
    output = opened(path)
    for number in numbers:
        error = BatchFault("c", "wrong") if number in failed else None
        output.append(number, BatchResult(id=output.id_of(number), custom_id="x", error=error))
    output.close()
    return path.read_bytes()


def test_the_id_of_a_batch_is_that_of_its_requests_and_its_model():
    assert batch_id_of(CHECKED, "model") == BATCH
    assert batch_id_of(CHECKED, "other") != BATCH
    assert batch_id_of(CheckedInput("d2", 9, 9), "model") != BATCH


def test_results_and_their_errors_are_found_again(tmp_path):
    path = tmp_path / "out.jsonl"
    written(path, 3, 1, 9, failed=[9])
    output = opened(path)
    assert [number for number in range(1, 10) if output.has(number)] == [1, 3, 9]
    assert (output.num_before, output.num_done, output.num_failed) == (3, 3, 1)
    output.close()


def test_a_piece_at_the_end_is_cut_off_at_any_byte(tmp_path):
    path = tmp_path / "out.jsonl"
    content = written(path, 3, 1, failed=[1])
    first = content.index(b"\n") + 1
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        output = opened(path)
        num_whole = (size >= first) + (size == len(content))
        assert output.num_done == num_whole
        assert path.read_bytes() == content[: [0, first, len(content)][num_whole]]
        output.close()


def test_what_is_no_result_of_the_batch_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "out.jsonl"
    content = written(path, 1, 2)
    first = content[: content.index(b"\n") + 1]
    contents = (
        b"my thesis",
        b"my thesis\n",
        content + b"\n",
        content + b"\0" * 100,
        content + b'{"id":"other_1"}',
        first + first,  # a result twice
        first.replace(BATCH.encode() + b"_1", BATCH.encode() + b"_10"),  # no such line
        first.replace(BATCH.encode() + b"_1", BATCH.encode() + b"_x"),
        first[:-3] + b"\n" + first,  # torn in the middle
    )
    for other in contents:
        path.write_bytes(other)
        with pytest.raises(BatchFileError, match="is no result of this batch, so the file was lef"):
            opened(path)
        assert path.read_bytes() == other
    path.write_bytes(content)
    with pytest.raises(BatchFileError, match=r"line 1 of .* is no result"):
        opened(path, batch=batch_id_of(CHECKED, "other"))
    assert path.read_bytes() == content


def test_what_is_overwritten_stays_until_there_is_a_first_result(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"my thesis\n")
    output = opened(path, Existing.OVERWRITE)
    output.close()
    assert path.read_bytes() == b"my thesis\n"
    output = opened(path, Existing.OVERWRITE)
    output.append(1, BatchResult(id=output.id_of(1), custom_id="x"))
    output.append(2, BatchResult(id=output.id_of(2), custom_id="y"))
    output.close()
    assert num_before(path) == 2


def failed_results(path, **statuses):
    """Write results, each with a status of its own."""
    output = opened(path)
    for name, status in statuses.items():
        number = int(name.removeprefix("line"))
        response = BatchResponse(status, "x", msgspec.Raw(b"{}"))
        error = BatchFault("c", "wrong") if status >= 400 else None
        id_ = output.id_of(number)
        output.append(number, BatchResult(id=id_, custom_id=name, response=response, error=error))
    output.close()
    return path.read_bytes()


def test_only_errors_that_may_pass_are_computed_again(tmp_path):
    path = tmp_path / "out.jsonl"
    failed_results(
        path, line1=200, line2=400, line3=408, line4=429, line5=404, line6=500, line7=503
    )
    output = opened(path, Existing.RETRY)
    assert [number for number in range(1, 8) if output.has(number)] == [1, 2, 5]
    assert (output.num_before, output.num_failed) == (3, 2)
    output.close()


def test_errors_stay_until_there_is_a_first_result_and_then_go_at_once(tmp_path):
    path, link = tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    content = failed_results(path, line1=200, line2=503, line3=504, line4=400)
    path.chmod(0o640)
    link.symlink_to(path)
    opened(link, Existing.RETRY).close()
    assert path.read_bytes() == content
    output = opened(link, Existing.RETRY)
    output.append(3, BatchResult(id=output.id_of(3), custom_id="y"))
    with pytest.raises(BatchFileError, match="is being written by another process"):
        opened(path)
    output.close()
    lines = content.splitlines(keepends=True)
    new = path.read_bytes()
    assert new.startswith(lines[0] + lines[3])
    assert new.count(b"\n") == 3
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.jsonl", "out.jsonl"]
    assert num_before(path, Existing.RETRY) == 3


def test_it_says_how_to_go_on(tmp_path):
    path = tmp_path / "out.jsonl"
    for existing, after in (
        (Existing.CONTINUE, "run the same command again to go on"),
        (Existing.RETRY, "run the same command again to go on"),
        (Existing.OVERWRITE, "run it again without --overwrite to go on"),
    ):
        path.write_bytes(b"")
        output = opened(path, existing)
        assert output.how_to_go_on == "run the same command again to go on"
        output.append(1, BatchResult(id=output.id_of(1), custom_id="x"))
        assert output.how_to_go_on == after
        output.close()
    device = opened(os.devnull, Existing.OVERWRITE)
    assert device.how_to_go_on == ""
    device.close()


def test_what_shall_be_resumed_must_be_there(tmp_path):
    path = tmp_path / "out.jsonl"
    with pytest.raises(BatchFileError, match="to resume; leave --resume out to begin"):
        opened(path, Existing.RESUME)
    assert not path.exists()
    written(path, 1)
    assert num_before(path, Existing.RESUME) == 1


def test_a_file_is_written_by_one_process_at_a_time(tmp_path):
    path = tmp_path / "out.jsonl"
    output = opened(path)
    with pytest.raises(BatchFileError, match="is being written by another process"):
        opened(path)
    output.close()
    opened(path).close()


def test_a_folder_cannot_be_written(tmp_path):
    with pytest.raises(BatchFileError, match="cannot be written: Is a directory"):
        opened(tmp_path)
    with pytest.raises(BatchFileError, match="https://x/y is a URL"):
        opened("https://x/y")
    with pytest.raises(BatchFileError, match="cannot be written: No such file"):
        opened(tmp_path / "none" / "out.jsonl")


def test_standard_output_and_devices_get_all_results(tmp_path, monkeypatch):
    with (tmp_path / "shown").open("w+") as shown:
        monkeypatch.setattr(sys, "stdout", shown)
        output = opened("-")
        output.append(1, BatchResult(id=output.id_of(1), custom_id="x"))
        output.close()
    assert (tmp_path / "shown").read_bytes().count(b"\n") == 1
    output = opened(os.devnull)
    output.append(1, BatchResult(id=output.id_of(1), custom_id="x"))
    assert output.num_before == 0
    output.close()
