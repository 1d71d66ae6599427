"""Each part of a prompt is checked."""

import pytest

from quire.errors import InvalidRequestError
from quire.frontend.intake.prompt import check_token_ids, prompt_parts


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("a", {"prompt": "a"}),
        ([1], {"prompt_token_ids": [1]}),
        ((1,), {"prompt_token_ids": (1,)}),
        ({"prompt": "a", "cache_salt": "s"}, {"prompt": "a", "cache_salt": "s"}),
        ({"prompt": None, "prompt_token_ids": [1]}, {"prompt": None, "prompt_token_ids": [1]}),
        (
            {"prompt": "a", "prompt_token_ids": None, "add_special_tokens": None},
            {"prompt": "a", "prompt_token_ids": None, "add_special_tokens": None},
        ),
    ],
)
def test_a_prompt_is_normalized_to_a_dict(prompt, parts):
    assert prompt_parts(prompt) == parts


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (7, "got int"),
        (None, "got NoneType"),
        (b"a", "got bytes"),
        ({}, "needs `prompt`"),
        ({"prompt": None}, "needs `prompt`"),
        ({"prompt": ["a"]}, "prompt of a prompt cannot be a list"),
        ({"prompt_token_ids": "12"}, "prompt_token_ids of a prompt cannot be a str"),
        ({"prompt_token_ids": {1, 2}}, "cannot be a set"),
        ({"prompt": "a", "add_special_tokens": 1}, "cannot be a int"),
        ({"prompt": "a", "promt": "b"}, "no key 'promt'"),
        ({"prompt": "a", 5: None}, "no key 5"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        prompt_parts(prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("salt", ["a", "x" * 128, "é" * 128, None])
def test_a_salt_of_these_lengths_is_taken(salt):
    assert prompt_parts({"prompt": "a", "cache_salt": salt})["cache_salt"] == salt


@pytest.mark.parametrize("salt", ["", "x" * 129, "a\n", 5, ["a"], b"a"])
def test_any_other_salt_is_refused(salt):
    with pytest.raises(InvalidRequestError, match="1 to 128") as caught:
        prompt_parts({"prompt": "a", "cache_salt": salt})
    assert caught.value.param == "cache_salt"


def test_ids_are_whole_numbers_below_the_size():
    check_token_ids([0, 9], 10, "x")
    check_token_ids((), 10, "x")
    for wrong in (-1, 10, True, False, 1.0, "1", None, [1]):
        with pytest.raises(InvalidRequestError, match="from 0 to 9") as caught:
            check_token_ids([0, wrong], 10, "x")
        assert caught.value.param == "x"
        assert f"x holds {wrong!r}" in str(caught.value)


@pytest.mark.parametrize("breaks", [[0], (2,), [0, 1, 2], [], None])
def test_breaks_are_ascending_positions_of_a_text(breaks):
    prompt = {"prompt": "abc", "add_special_tokens": False, "special_token_breaks": breaks}
    assert prompt_parts(prompt) == prompt


@pytest.mark.parametrize("breaks", [[3], [-1], [1, 1], [2, 1], ["1"], [True], [1.0]])
def test_other_breaks_are_refused(breaks):
    prompt = {"prompt": "abc", "add_special_tokens": False, "special_token_breaks": breaks}
    with pytest.raises(InvalidRequestError, match="ascending positions"):
        prompt_parts(prompt)


def test_breaks_need_a_text():
    with pytest.raises(InvalidRequestError, match="need a text"):
        prompt_parts({"special_token_breaks": [1], "prompt_token_ids": [1]})
