"""Headers of GGUF files: what is written is read, and what is damaged is an error with a name."""

import struct
import tracemalloc

import numpy as np
import pytest
from gguf_files import Blocks, Number, gguf_bytes, string
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.compose.gguf.header import read_header
from quire.errors import CheckpointCorruptError, CheckpointError, UnsupportedModelError

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": ["a", "ß", "▁c"],
    "tokenizer.ggml.scores": [0.5, -1.0],
    "tokenizer.ggml.token_type": [1, 2, 3],
    "split.count": Number(1, "H"),
    "big": Number(2**63, "Q"),
    "small": Number(-3, "b"),
}
TENSORS = {
    "token_embd.weight": np.arange(12.0).reshape(3, 4),
    "output_norm.weight": np.arange(5.0),
    "blk.0.attn_q.weight": Blocks(np.zeros((2, 36), np.uint8), 2, (2, 64)),
}
WHOLE = gguf_bytes(METADATA, TENSORS)
HEADER_BYTES = WHOLE.index(string("blk.0.attn_q.weight")) + 8 + 19 + 4 + 16 + 12


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.gguf"


def read(file, content):
    file.write_bytes(content)
    return read_header(file)


def test_metadata_has_every_type(file):
    metadata = dict(read(file, WHOLE).metadata)
    arrays = {key: metadata[key].read() for key in METADATA if isinstance(METADATA[key], list)}
    plain = {key: value for key, value in METADATA.items() if key not in arrays}
    assert {**metadata, **arrays} == {
        **METADATA, **{key: getattr(value, "value", value) for key, value in plain.items()}
    }  # fmt: skip


def test_tensors_have_their_shape_and_place(file):
    header = read(file, WHOLE)
    embedding = header.tensors["token_embd.weight"]
    assert (embedding.shape, embedding.type.name, embedding.num_bytes) == ((3, 4), "F32", 48)
    data = WHOLE[embedding.offset : embedding.offset + embedding.num_bytes]
    assert np.frombuffer(data, np.float32).tolist() == list(range(12))
    packed = header.tensors["blk.0.attn_q.weight"]
    assert (packed.shape, packed.type.name, packed.num_bytes) == ((2, 64), "Q4_0", 72)
    assert header.num_bytes == HEADER_BYTES


def test_an_alignment_of_its_own_counts(file):
    content = gguf_bytes({"general.alignment": 64}, TENSORS, alignment=64)
    assert all(tensor.offset % 64 == 0 for tensor in read(file, content).tensors.values())


def test_a_file_that_changes_is_read_again(file):
    assert read(file, gguf_bytes({"a": 1})).metadata == {"a": 1}
    assert read(file, gguf_bytes({"bc": 2})).metadata == {"bc": 2}


def test_version_1_and_big_endian_files_are_named(file):
    with pytest.raises(UnsupportedModelError, match="of version 1; quire reads versions 2 and 3"):
        read(file, gguf_bytes({}, version=1))
    with pytest.raises(UnsupportedModelError, match=r"big-endian .* gguf-convert-endian"):
        read(file, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    assert read(file, gguf_bytes({"a": 1}, version=2)).metadata == {"a": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has 0 bytes"),
        (b"PK\x03\x04" + bytes(40), "begins with"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "claims .* metadata entries, and the limit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "claims .* tensors, and the limit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1000, 0), "claims 1000 tensors in the 8 bytes left"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "the key of metadata entry 0 claims"),
        (gguf_bytes({"a": "x" * 9})[:45], "ends within a, of 9 bytes"),
        (gguf_bytes({"a": b"\xff"}), "a is not UTF-8"),
        (gguf_bytes({b"\xff": 1}), "the key of metadata entry 0 is not UTF-8"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(file, content, message):
    with pytest.raises(CheckpointCorruptError, match=message) as caught:
        read(file, content)
    assert str(file) in str(caught.value)


def replaced(old: bytes, new: bytes) -> bytes:
    assert WHOLE.count(old) == 1
    return WHOLE.replace(old, new)


def described(name, sizes, kind, offset):
    return string(name) + struct.pack(
        f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset
    )  # fmt: skip


NORM = described("output_norm.weight", (5,), 0, 64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (replaced(NORM, described("output_norm.weight", (5,), 0, 2**40)), "is the copy complete"),
        (replaced(NORM, described("output_norm.weight", (5,), 0, 2**64 - 32)), "copy complete"),
        (replaced(NORM, described("output_norm.weight", (2**60,), 0, 64)), "is the copy complete"),
        (replaced(NORM, described("output_norm.weight", (5,), 0, 65)), "is not aligned"),
        (replaced(NORM, described("output_norm.weight", (5,), 0, 32)), "overlap"),
        (replaced(NORM, described("output_norm.weight", (0,), 0, 64)), "has no elements"),
        (replaced(NORM, described("output_norm.weight", (5,), 2, 64)), "no multiple of 32"),
        (WHOLE[:-40], "is the copy complete"),
        (gguf_bytes({"general.alignment": 12}), "power of two"),
        (gguf_bytes({"general.alignment": "x"}), "power of two"),
        (gguf_bytes({"a": Number(9, "I"), "b": 1}).replace(string("b"), string("a")), "twice"),
    ],
)  # fmt: skip
def test_wrong_positions_and_shapes_are_named(file, content, message):
    with pytest.raises(CheckpointCorruptError, match=message):
        read(file, content)


def test_types_that_are_not_read_have_their_names(file):
    content = replaced(NORM, described("output_norm.weight", (5,), 16, 64))
    with pytest.raises(UnsupportedModelError, match=r"output_norm.weight .* IQ2_XXS.*it reads F32"):
        read(file, content)
    content = replaced(NORM, described("output_norm.weight", (5,), 999, 64))
    with pytest.raises(UnsupportedModelError, match="the type 999"):
        read(file, content)


def test_two_tensors_of_one_name_are_an_error(file):
    content = gguf_bytes({}, {"a": np.zeros(8), "b": np.zeros(8)})
    with pytest.raises(CheckpointCorruptError, match="several tensors a"):
        read(file, content.replace(string("b"), string("a")))


def test_a_type_of_metadata_that_does_not_exist_is_named(file):
    content = gguf_bytes({"a": 1}).replace(string("a") + bytes([4]), string("a") + bytes([99]))
    with pytest.raises(CheckpointCorruptError, match="a has the type 99"):
        read(file, content)
    nested = gguf_bytes({"a": ["x"]}).replace(
        struct.pack("<IIQ", 9, 8, 1), struct.pack("<IIQ", 9, 9, 1)
    )
    with pytest.raises(CheckpointCorruptError, match="elements of a have the type 9"):
        read(file, nested)


MUTATIONS = st.lists(
    st.tuples(
        st.integers(0, HEADER_BYTES - 1),
        st.one_of(
            st.binary(min_size=1, max_size=8),
            st.sampled_from([2**63, 2**64 - 1, 2**40, 2**31, 0]).map(
                lambda n: n.to_bytes(8, "little")
            ),
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(mutations=MUTATIONS, length=st.integers(0, len(WHOLE)))
def test_a_changed_header_is_read_or_named_and_takes_little_memory(file, mutations, length):
    content = bytearray(WHOLE)
    for position, new in mutations:
        content[position : position + len(new)] = new
    tracemalloc.start()
    try:
        header = read(file, bytes(content[: max(length, len(WHOLE) // 2)]))
        for value in header.metadata.values():
            if not isinstance(value, int | float | str):
                value.read()
    except CheckpointError as error:
        named = str(file) in str(error)
    else:
        named = True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert named
    assert peak < 2**20
