"""Random bytes: from the system, in blocks, and never the same twice."""

import os

from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.random_bytes import BLOCK_BYTES, RandomBytes


class Blocks:
    """Counts the blocks that are read, each of other bytes."""

    def __init__(self):
        self.num = 0

    def __call__(self, num_bytes):
        self.num += 1
        start = self.num * BLOCK_BYTES
        return b"".join((start + i).to_bytes(4, "big") for i in range(0, num_bytes, 4))


@given(sizes=st.lists(st.integers(0, 64), max_size=300))
def test_bytes_are_read_in_blocks_and_given_once(sizes):
    random, blocks = RandomBytes(), Blocks()
    own, os.urandom = os.urandom, blocks
    try:
        taken = [random.take(4 * size) for size in sizes]
    finally:
        os.urandom = own
    words = [text[i : i + 4] for text in taken for i in range(0, len(text), 4)]
    assert [len(text) for text in taken] == [4 * size for size in sizes]
    assert len(set(words)) == len(words)
    assert blocks.num <= 2 * len(words) * 4 // BLOCK_BYTES + 1


@given(st.integers(1, 128))
def test_a_number_has_its_bits(num_bits):
    random = RandomBytes()
    numbers = [random.bits(num_bits) for _ in range(64)]
    assert all(0 <= number < 2**num_bits for number in numbers)
    assert num_bits < 16 or len(set(numbers)) > 32
    assert len(random.hex(num_bits)) == 2 * num_bits


def test_a_fork_has_other_bytes():
    random = RandomBytes()
    random.take(1)
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(start, random.take(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(end, 16) != random.take(16)
    os.close(end)
    os.close(start)
