"""All keys are compared, and two of them differ in name and in text."""

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.server.keys.api_key import digest_of, make_key
from quire.server.keys.key_ring import KeyRing

RING = KeyRing([make_key("a", "one"), make_key("b", "two")], [make_key("c", "three")])


@pytest.mark.parametrize(
    ("text", "name"), [("one", "a"), ("two", "b"), ("three", "c"), ("four", None), ("", None)]
)
def test_every_key_is_compared_whichever_matches(monkeypatch, text, name):
    calls = []
    real = secrets.compare_digest
    monkeypatch.setattr(secrets, "compare_digest", lambda a, b: calls.append((a, b)) or real(a, b))
    found = RING.find(text.encode())
    assert (found and found.name) == name
    assert len(calls) == 3
    assert {len(part) for call in calls for part in call} == {32}


@given(st.text(min_size=1, max_size=40).filter(lambda t: t.isprintable() and " " not in t))
def test_a_key_is_found_by_its_own_text_only(text):
    ring = KeyRing([make_key("a", text)])
    assert ring.find(text.encode()) is ring.api[0]
    for other in (text + "x", text[:-1], text * 2):
        assert ring.find(other.encode()) is None


def test_keys_without_a_name_are_named_by_their_digests(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# comment\nthird\n\nfourth\n")
    file.chmod(0o600)
    settings = ServerSettings(
        api_key=("first", "second"), api_key_file=str(file), admin_key=("fifth",)
    )
    ring = KeyRing.load(settings)
    texts = (b"first", b"second", b"third", b"fourth")
    names = [f"key-{digest_of(text).hex()[:8]}" for text in texts]
    assert [key.name for key in ring.api] == names
    assert [key.name for key in ring.admin] == [f"admin-{digest_of(b'fifth').hex()[:8]}"]
    assert [ring.find(text).name for text in texts] == names
    file.write_text("fourth\n")
    settings = ServerSettings(api_key=("second",), api_key_file=str(file))
    assert [key.name for key in KeyRing.load(settings).api] == [names[1], names[3]]


def test_two_keys_of_one_name_or_one_text_are_refused():
    with pytest.raises(SettingsError, match="two keys have the name 'a'"):
        KeyRing([make_key("a", "one"), make_key("a", "two")])
    with pytest.raises(SettingsError, match="the keys 'a' and 'b' are the same") as caught:
        KeyRing([make_key("a", "canary")], [make_key("b", "canary")])
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "two words", "tab\t", "line\n", "x" * 1025, "\x7f", "a\u202eb"]
)
def test_a_key_that_no_header_can_carry_is_refused(text):
    with pytest.raises(SettingsError) as caught:
        make_key("a", text)
    assert not text or repr(text)[1:-1] not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 65, "é", "a/b"])
def test_a_name_is_fit_for_logs_and_metrics(name):
    with pytest.raises(SettingsError, match="the name of a key"):
        make_key(name, "text")


def test_a_key_shows_neither_its_text_nor_its_digest():
    key = make_key("a", "canary")
    assert "canary" not in repr(key)
    assert "digest" not in repr(key)
