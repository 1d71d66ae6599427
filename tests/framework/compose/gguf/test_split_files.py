"""Models in several GGUF files: all must be there, and the first is the one to name."""

import numpy as np
import pytest
from gguf_files import Number, write_gguf

from quire.compose.gguf.split_files import gguf_paths, read_files
from quire.errors import CheckpointCorruptError

COUNT = 3


def part(number, **extra):
    return {
        **({"general.architecture": "llama"} if number == 1 else {}),
        "split.no": Number(number - 1, "H"),
        "split.count": Number(COUNT, "H"),
        "split.tensors.count": Number(COUNT, "i"),
        **extra,
    }


@pytest.fixture
def files(tmp_path):
    return [
        write_gguf(
            tmp_path / f"tiny-{number:05}-of-{COUNT:05}.gguf",
            part(number),
            {f"t{number}": np.full(4, number)},
        )
        for number in range(1, COUNT + 1)
    ]


def test_a_single_file_is_a_model(tmp_path):
    file = write_gguf(tmp_path / "a-00001-of-00002.gguf", {"x": 1}, {"t": np.zeros(3)})
    assert gguf_paths(file) == [file]
    assert read_files(file).tensors["t"].file == file
    one = write_gguf(tmp_path / "b.gguf", {"split.count": Number(1, "H")}, {"t": np.zeros(3)})
    assert gguf_paths(one) == [one]


def test_a_set_has_the_metadata_of_the_first_and_the_tensors_of_all(files):
    model = read_files(files[0])
    assert [header.file for header in model.headers] == files
    assert model.metadata["general.architecture"] == "llama"
    assert {name: tensor.file for name, tensor in model.tensors.items()} == {
        "t1": files[0], "t2": files[1], "t3": files[2],
    }  # fmt: skip


def test_another_file_of_the_set_names_the_first(files):
    with pytest.raises(CheckpointCorruptError, match=r"not the first .*tiny-00001-of-00003\.gguf"):
        read_files(files[1])


def test_missing_files_are_named(files):
    files[1].unlink()
    with pytest.raises(CheckpointCorruptError, match=r"1 are missing: tiny-00002-of-00003\.gguf"):
        read_files(files[0])


def test_a_file_of_a_set_needs_the_name_that_it_had(files):
    renamed = files[0].rename(files[0].with_name("other.gguf"))
    with pytest.raises(CheckpointCorruptError, match=r"one of 3 files .* give them the names"):
        read_files(renamed)


def test_a_count_that_is_no_number_is_an_error(tmp_path):
    file = write_gguf(tmp_path / "a-00001-of-00003.gguf", {"split.count": "3"}, {})
    with pytest.raises(CheckpointCorruptError, match=r"one of '3' files"):
        read_files(file)


def test_a_tensor_in_two_files_is_an_error(files):
    write_gguf(files[2], part(3), {"t1": np.zeros(4)})
    with pytest.raises(CheckpointCorruptError, match="tensor t1 is both in"):
        read_files(files[0])


def test_a_number_of_tensors_that_is_not_that_of_the_files_is_an_error(files):
    write_gguf(files[2], part(3), {"t3": np.zeros(4), "t4": np.zeros(4)})
    with pytest.raises(CheckpointCorruptError, match=r"claims 3 tensors .* which have 4"):
        read_files(files[0])
