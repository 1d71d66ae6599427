import struct
from hashlib import sha256

import msgspec
import pytest
from engine_parts import make_message

from quire.engine.kv_cache.block_hash import BlockHasher
from quire.errors import RequestFailedError
from quire.messages import AdapterRef, MediaSpan

TOKENS = [7, 8, 9, 10, 11, 12]


def names(message, root=b"model", block_size=2, num_blocks=3):
    hasher = BlockHasher(block_size, root)
    hashes = [hasher.start(message)]
    hasher.extend(hashes, message.token_ids, num_blocks, message.media)
    return hashes


def with_adapter(name, content_hash, path="somewhere"):
    message = make_message("a", prompt=TOKENS)
    return msgspec.structs.replace(message, adapter=AdapterRef(name, path, content_hash))


def with_salt(salt):
    return msgspec.structs.replace(make_message("a", prompt=TOKENS), cache_salt=salt)


def test_the_chain_is_the_one_worked_out_by_hand():
    root = struct.pack("<Q5sQQ", 5, b"model", 0, 0)
    first = sha256(sha256(root).digest() + struct.pack("<2i", 7, 8)).digest()
    second = sha256(first + struct.pack("<2i", 9, 10)).digest()
    assert names(make_message("a", prompt=TOKENS), num_blocks=2)[1:] == [first, second]


def test_a_name_depends_on_all_tokens_before():
    one = names(make_message("a", prompt=[1, 2, 3, 4]), num_blocks=2)
    other = names(make_message("a", prompt=[9, 2, 3, 4]), num_blocks=2)
    assert one[2] != other[2]


def test_the_request_itself_is_not_in_the_name():
    one, other = make_message("a", prompt=TOKENS), make_message("b", prompt=TOKENS, max_tokens=9)
    assert names(one) == names(other)


@pytest.mark.parametrize(
    "other",
    [
        with_salt("mine"),
        with_salt(""),
        with_adapter("one", content_hash="1"),
        with_adapter("one", content_hash="2"),
    ],
)
def test_another_salt_or_adapter_content_shares_no_hash(other):
    assert not set(names(with_salt("yours"))) & set(names(other))
    assert not set(names(make_message("a", prompt=TOKENS))) & set(names(other))


def test_adapters_of_the_same_content_share_hashes_under_any_name():
    assert names(with_adapter("one", "same")) == names(with_adapter("two", "same", "elsewhere"))


def test_an_adapter_without_content_has_no_names():
    with pytest.raises(RequestFailedError, match="adapter 'one' has no content hash"):
        names(with_adapter("one", ""))


def test_a_salt_cannot_pass_for_an_adapter():
    assert names(with_salt("adapter:1")) != names(with_adapter("one", "1"))


def test_another_model_shares_no_hash():
    message = make_message("a", prompt=TOKENS)
    assert not set(names(message, root=b"model")) & set(names(message, root=b"mode"))


def test_names_are_made_once_and_go_on_where_they_ended():
    hasher, tokens = BlockHasher(2, b""), list(TOKENS)
    hashes = [hasher.start(make_message("a"))]
    hasher.extend(hashes, tokens, 2)
    tokens[0] = 99  # would change every name if it were looked at again
    before = list(hashes)
    hasher.extend(hashes, tokens, 3)
    assert hashes[:3] == before
    assert len(hashes) == 4


def with_image(content_hash, position=3, length=2):
    media = (MediaSpan(position, length, content_hash),)
    return msgspec.structs.replace(make_message("a", prompt=TOKENS), media=media)


def test_two_images_behind_the_same_placeholders_hash_differently():
    cat, dog, text = (names(m) for m in (with_image("cat"), with_image("dog"), with_salt(None)))
    assert cat[1] == dog[1] == text[1]  # the block before the image
    assert len({cat[2], dog[2], text[2]}) == 3
    assert len({cat[3], dog[3], text[3]}) == 3  # and all behind it


def test_the_same_image_elsewhere_has_another_name():
    assert names(with_image("cat", position=2))[2] != names(with_image("cat", position=3))[2]


def test_a_long_image_is_in_the_name_of_each_of_its_blocks():
    one = names(with_image("cat", position=0, length=6))
    other = names(with_image("dog", position=0, length=6))
    assert not set(one[1:]) & set(other[1:])


@pytest.mark.parametrize(
    ("position", "length", "parts"),
    [
        (2, 2, [b"", b"cat@0", b""]),  # ends where the block does
        (4, 2, [b"", b"", b"cat@0"]),  # begins where the block before ends
        (1, 2, [b"cat@1", b"cat@-1", b""]),
        (1, 1, [b"cat@1", b"", b""]),
        (0, 6, [b"cat@0", b"cat@-2", b"cat@-4"]),
    ],
)
def test_a_block_names_the_media_that_stands_in_it_and_no_other(position, length, parts):
    hashes = names(with_image("cat", position, length))
    for index, part in enumerate(parts):
        tokens = struct.pack("<2i", *TOKENS[2 * index : 2 * index + 2])
        assert hashes[index + 1] == sha256(hashes[index] + tokens + part).digest()


def test_two_images_in_one_block_hash_differently_in_another_order():
    spans = (MediaSpan(2, 1, "cat"), MediaSpan(3, 1, "dog"))
    other = (MediaSpan(2, 1, "dog"), MediaSpan(3, 1, "cat"))
    one, two = (
        names(msgspec.structs.replace(make_message("a", prompt=TOKENS), media=media))
        for media in (spans, other)
    )
    assert one[1] == two[1]
    assert one[2] != two[2]


def test_parts_of_the_first_name_cannot_pass_for_each_other():
    """The root is one byte longer, and the adapter's content begins with that byte."""
    assert (
        names(with_adapter("one", "1"), root=b"model")[0]
        != (names(make_message("a", prompt=TOKENS), root=b"modeladapter:1")[0])
    )
