"""Ids of calls differ, and have the length that a model's template needs."""

from quire.frontend.chat.parsing.call_ids import is_call_id, new_call_id


def test_ids_differ():
    assert len({new_call_id() for _ in range(1000)}) == 1000
    assert all(new_call_id().startswith("call_") for _ in range(3))


def test_an_id_of_a_length_has_letters_and_digits_only():
    ids = {new_call_id(9) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(each) == 9 and each.isalnum() and each.isascii() for each in ids)
    assert {character for each in ids for character in each} >= set("azAZ09")


def test_what_a_model_writes_is_an_id_if_it_is_short_and_has_no_blanks():
    assert is_call_id("functions.find:0")
    for text in ("", "a b", "a\n", "x" * 129, "é", None, 3):
        assert not is_call_id(text)
