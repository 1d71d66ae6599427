"""Files are checked by their headers: damage is an error that names the file, pickles stay shut."""

import json
import os
from pathlib import Path

import pytest

from quire.errors import CheckpointCorruptError, CheckpointError, UnsafeCheckpointError
from quire.interfaces.checkpoint_tensors import StoredTensor
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.worker.loading import checkpoint_files
from quire.worker.loading.checkpoint_files import find_weight_files, read_headers


@pytest.fixture
def written(tmp_path) -> WrittenCheckpoint:
    return write_checkpoint(tmp_path / "model", "Qwen3ForCausalLM", num_hidden_layers=2)


def read(folder: Path) -> dict[str, StoredTensor]:
    return read_headers(find_weight_files(folder))


@pytest.mark.parametrize("num_shards", [1, 4])
def test_headers_name_every_tensor_with_its_shape(tmp_path, num_shards):
    written = write_checkpoint(tmp_path, "Qwen3ForCausalLM", num_shards=num_shards)
    assert {name: tensor.shape for name, tensor in read(tmp_path).items()} == {
        name: tuple(weight.shape) for name, weight in written.weights.items()
    }


def test_a_tensor_in_two_files_is_an_error(tmp_path):
    write_checkpoint(tmp_path, "Qwen3ForCausalLM", num_shards=2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointCorruptError, match="is both in"):
        read(tmp_path)


def test_an_incomplete_copy_of_a_model_names_the_missing_shards(tmp_path):
    written = write_checkpoint(tmp_path, "Qwen3ForCausalLM", num_shards=3)
    gone = "model-00002-of-00003.safetensors"
    (tmp_path / gone).unlink()
    with pytest.raises(CheckpointCorruptError, match=f"lacks 1 of 3 weight files: {gone}"):
        read(written.folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_a_pickle_is_refused_and_never_opened(written, name):
    """A fifo would block the process that opens it."""
    (written.folder / "model.safetensors").unlink()
    os.mkfifo(written.folder / name)
    with pytest.raises(UnsafeCheckpointError, match=name):
        read(written.folder)


def test_a_pickle_beside_safetensors_does_not_matter(written):
    (written.folder / "pytorch_model.bin").write_bytes(b"anything")
    read(written.folder)


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ("{", CheckpointCorruptError),
        ("[]", CheckpointCorruptError),
        ('{"weight_map": []}', CheckpointCorruptError),
        ('{"weight_map": {"a": 3}}', CheckpointCorruptError),
        ('{"weight_map": {"a": ""}}', CheckpointCorruptError),
        ("[" * 200_000, CheckpointCorruptError),
        ("version https://git-lfs.github.com/spec/v1", CheckpointCorruptError),
        ('{"weight_map": {"a": "../../etc/passwd"}}', CheckpointCorruptError),
        ('{"weight_map": {"a": "weights.bin"}}', UnsafeCheckpointError),
    ],
)
def test_a_broken_index_is_an_error(written, index, error):
    (written.folder / "model.safetensors.index.json").write_text(index)
    (written.folder / "weights.bin").write_bytes(b"x")
    with pytest.raises(error):
        read(written.folder)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": 3}'])
def test_an_index_of_another_form_is_told_what_it_needs(written, index):
    (written.folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointCorruptError, match="must be an object with an object weight_map"):
        read(written.folder)


def header_of(file: Path) -> tuple[dict, bytes]:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(file: Path, header: bytes, data: bytes) -> None:
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)


def cut_the_end(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def cut_the_header(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:60])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def add_to_the_end(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"more")


def claim_a_huge_header(file: Path) -> None:
    file.write_bytes((2**62).to_bytes(8, "little") + file.read_bytes()[8:])


def break_the_header(file: Path) -> None:
    with_header(file, b"{not json", b"")


def nest_the_header(file: Path) -> None:
    with_header(file, b"[" * 200_000, b"")


def make_the_header_a_list(file: Path) -> None:
    with_header(file, b"[]", b"")


def claim_a_huge_tensor(file: Path) -> None:
    header, data = header_of(file)
    header["model.norm.weight"]["shape"] = [2**40]
    with_header(file, json.dumps(header).encode(), data)


def overlap(file: Path) -> None:
    header, data = header_of(file)
    header["model.norm.weight"]["data_offsets"] = [0, 256]
    with_header(file, json.dumps(header).encode(), data)


def leave_a_gap(file: Path) -> None:
    """The tensor behind the gap still ends where the file does."""
    header, data = header_of(file)
    last = max((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
    begin, end = header[last]["data_offsets"]
    header[last]["shape"] = [(end - begin) // 4 - 1]
    header[last]["data_offsets"] = [begin + 4, end]
    with_header(file, json.dumps(header).encode(), data)


def negative_offsets(file: Path) -> None:
    header, data = header_of(file)
    header["model.norm.weight"]["data_offsets"] = [-256, 0]
    with_header(file, json.dumps(header).encode(), data)


def unknown_dtype(file: Path) -> None:
    header, data = header_of(file)
    header["model.norm.weight"]["dtype"] = "F99"
    with_header(file, json.dumps(header).encode(), data)


def no_shape(file: Path) -> None:
    header, data = header_of(file)
    del header["model.norm.weight"]["shape"]
    with_header(file, json.dumps(header).encode(), data)


def with_entry(file: Path, **values: object) -> None:
    header, data = header_of(file)
    header["model.norm.weight"] |= values
    with_header(file, json.dumps(header).encode(), data)


def claim_infinite_offsets(file: Path) -> None:
    with_entry(file, data_offsets=[0, float("inf")])


def claim_an_infinite_shape(file: Path) -> None:
    with_entry(file, shape=[float("inf")])


def claim_a_size_of_many_digits(file: Path) -> None:
    with_entry(file, shape=[10**300] * 20)


def claim_many_dimensions(file: Path) -> None:
    with_entry(file, shape=[2**62] * 300)


def write_numbers_as_text(file: Path) -> None:
    with_entry(file, shape=["64"])


def write_numbers_with_a_point(file: Path) -> None:
    with_entry(file, shape=[64.0])


def claim_more_than_there_is(file: Path) -> None:
    """What is there is a header without tensors, and claims the four bytes behind it."""
    file.write_bytes((6).to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize(
    "damage",
    [
        claim_more_than_there_is,
        cut_the_end, cut_the_header, empty, add_to_the_end, claim_a_huge_header, break_the_header,
        nest_the_header, make_the_header_a_list, claim_a_huge_tensor, overlap, leave_a_gap,
        negative_offsets, unknown_dtype, no_shape, claim_infinite_offsets, claim_an_infinite_shape,
        claim_a_size_of_many_digits, claim_many_dimensions, write_numbers_as_text,
        write_numbers_with_a_point,
    ],
)  # fmt: skip
def test_a_damaged_file_is_an_error_that_names_it(written, damage):
    damage(written.folder / "model.safetensors")
    with pytest.raises(CheckpointCorruptError, match=r"model\.safetensors' is damaged"):
        read(written.folder)


def test_an_empty_file_is_said_to_be_empty(written):
    (written.folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        CheckpointCorruptError, match=r"model\.safetensors' is damaged: it is empty"
    ):
        read(written.folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_link_to_a_file_that_is_gone_is_named(written, name):
    (written.folder / "model.safetensors").unlink()
    (written.folder / "pytorch_model.bin").write_bytes(b"anything")
    (written.folder / name).symlink_to("../../blobs/gone")
    with pytest.raises(CheckpointCorruptError, match=f"links to files that are gone: {name}; "):
        read(written.folder)


def test_of_many_missing_files_a_few_are_named(written):
    (written.folder / "model.safetensors").rename(written.folder / SHARD.format(1, 200))
    with pytest.raises(
        CheckpointCorruptError, match=r"00009-of-00200\.safetensors and 191 more; copy it"
    ):
        read(written.folder)


def test_a_header_is_no_longer_than_the_format_allows(written, monkeypatch):
    header = (written.folder / "model.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    monkeypatch.setattr(checkpoint_files, "MAX_HEADER_BYTES", length)
    read(written.folder)
    monkeypatch.setattr(checkpoint_files, "MAX_HEADER_BYTES", length - 1)
    with pytest.raises(CheckpointCorruptError, match=f"header claims {length} bytes"):
        read(written.folder)


def test_every_cut_of_a_file_is_a_typed_error(written):
    file = written.folder / "model.safetensors"
    data = file.read_bytes()
    for length in range(0, len(data), 7919):
        file.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            read(written.folder)


def test_an_index_names_no_file_outside_its_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "other.safetensors").write_bytes(b"")
    index = json.dumps({"weight_map": {"w": "../other.safetensors"}})
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointCorruptError, match="names files outside its folder"):
        find_weight_files(folder)


SHARD = "model-{:05d}-of-{:05d}.safetensors"


def without_index(tmp_path: Path) -> Path:
    written = write_checkpoint(tmp_path / "sharded", "Qwen3ForCausalLM", num_shards=3)
    (written.folder / "model.safetensors.index.json").unlink()
    return written.folder


def test_a_whole_set_of_files_needs_no_index(tmp_path):
    folder = without_index(tmp_path)
    (folder / "consolidated.safetensors").write_bytes(b"other")
    (folder / "model-of-mine.safetensors").write_bytes(b"other")
    assert [file.name for file in find_weight_files(folder)] == [
        SHARD.format(number, 3) for number in (1, 2, 3)
    ]


def test_an_incomplete_set_without_an_index_names_the_missing_files(tmp_path):
    folder = without_index(tmp_path)
    (folder / SHARD.format(1, 3)).unlink()
    (folder / SHARD.format(3, 3)).unlink()
    names = f"{SHARD.format(1, 3)}, {SHARD.format(3, 3)}"
    with pytest.raises(CheckpointCorruptError, match=f"lacks 2 of 3 weight files: {names}; copy"):
        find_weight_files(folder)


def test_two_sets_without_an_index_are_refused(tmp_path):
    folder = without_index(tmp_path)
    (folder / SHARD.format(1, 2)).write_bytes(b"")
    with pytest.raises(CheckpointCorruptError, match="of 00002 and of 00003"):
        find_weight_files(folder)


def test_files_outside_the_index_are_ignored(tmp_path):
    written = write_checkpoint(tmp_path, "Qwen3ForCausalLM", num_shards=2)
    for name in ("consolidated.safetensors", "model.safetensors", SHARD.format(3, 3)):
        (tmp_path / name).write_bytes(b"damaged")
    assert set(read(tmp_path)) == set(written.weights)


def test_all_damaged_files_are_named(tmp_path):
    write_checkpoint(tmp_path, "Qwen3ForCausalLM", num_shards=3)
    for number in (1, 3):
        file = tmp_path / SHARD.format(number, 3)
        file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointCorruptError) as caught:
        read(tmp_path)
    assert str(caught.value).startswith("2 of 3 weight files are damaged: ")
    assert all(SHARD.format(number, 3) in str(caught.value) for number in (1, 3))
    assert SHARD.format(2, 3) not in str(caught.value)


def test_a_pointer_of_git_lfs_is_named_with_the_way_out(written):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    (written.folder / "model.safetensors").write_text(pointer)
    with pytest.raises(CheckpointCorruptError, match=r"Git LFS pointer.*git lfs pull"):
        read(written.folder)


def test_a_link_to_a_file_that_is_gone_is_a_missing_file(tmp_path):
    write_checkpoint(tmp_path, "Qwen3ForCausalLM", num_shards=2)
    file = tmp_path / SHARD.format(2, 2)
    file.unlink()
    file.symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(CheckpointCorruptError, match=f"lacks 1 of 2 weight files: {file.name}"):
        read(tmp_path)
