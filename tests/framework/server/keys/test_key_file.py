"""Files of keys in both formats, and errors that show no line of them."""

import re
import traceback
from pathlib import Path

import pytest

from quire.errors import SettingsError
from quire.server.keys.api_key import KeyLimits
from quire.server.keys.key_file import MAX_FILE_BYTES, read_key_file

YAML = """
# of the tenants
keys:
  - name: acme
    key: sk-1
    requests-per-minute: 60
    tokens_per_minute: 10000
    max-concurrent: 4
    priority: -3
    models: [demo, pirate]
  - key: sk-2
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"

    def write(text, mode=0o600):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    return write


def test_a_line_is_a_key(file):
    entries = read_key_file(file("sk-1\n  sk-2 \r\n\n# sk-3\n"))
    assert [(entry.key, entry.name) for entry in entries] == [("sk-1", None), ("sk-2", None)]


def test_a_file_in_yaml_has_names_and_limits(file):
    acme, other = read_key_file(file(YAML))
    assert (acme.key, acme.name) == ("sk-1", "acme")
    assert acme.limits == KeyLimits(
        requests_per_minute=60,
        tokens_per_minute=10000,
        max_concurrent=4,
        priority=-3,
        models=("demo", "pirate"),
    )
    assert (other.key, other.name, other.limits) == ("sk-2", None, KeyLimits())
    assert "sk-" not in repr([acme, other])


def test_the_example_of_the_docs_is_a_file(file):
    page = (Path(__file__).parents[4] / "docs" / "security.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    acme, batch = read_key_file(file(example))
    assert (acme.name, batch.name) == ("acme", "batch")
    assert None not in (acme.limits.requests_per_minute, acme.limits.models, acme.limits.priority)
    assert batch.limits == KeyLimits()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no keys"),
        ("# nothing\n\n", "has no keys"),
        ("keys:\n", "must have a list of keys"),
        ("keys:\n- a\n", "entry 1: it must have key"),
        ("keys:\nother: 1\n", "must have a list of keys, and nothing beside it"),
        ("keys:\n- key: sk-canary\nother: 1\n", "nothing beside it"),
        ("keys:\n- {key: sk-canary, nam: x}\n", "entry 1: there is no field 'nam'; did you mean"),
        ("keys:\n- name: x\n", "key and name must be text"),
        ("keys:\n- {key: 5, name: sk-canary}\n", "key and name must be text"),
        (
            "keys:\n- {key: sk-canary, requests-per-minute: many}\n",
            "entry 1: Expected `int | null`",
        ),
        ("keys:\n- {key: sk-canary, max-concurrent: true}\n", "entry 1: Expected `int | null`"),
        ("keys:\n- key: sk-canary\n   name: [\n", "is not YAML at line 3"),
        ("keys:\n- key: !!python/object/apply:os.system ['sk-canary']\n", "is not YAML"),
        ("keys:\n- key: sk-canary\n--- \n", "is not YAML"),
        ("keys:\n- key: sk-canary: [\n", "is not YAML at line 2"),
        (b"sk-\xffcanary", "is not UTF-8"),
        ("x" * (MAX_FILE_BYTES + 1), "is larger than"),
    ],
)
def test_a_wrong_file_is_refused_without_its_content(file, text, message):
    with pytest.raises(SettingsError) as caught:
        read_key_file(file(text))
    assert message in str(caught.value)
    assert "canary" not in str(caught.value)
    said_by_causes = traceback.format_exception(caught.value)[:-1]
    assert not any("Error: " in text and "canary" in text for text in said_by_causes)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingsError, match="none cannot be read: No such file"):
        read_key_file(tmp_path / "none")
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        read_key_file(tmp_path)


@pytest.mark.parametrize(
    ("mode", "is_warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)]
)
def test_a_file_that_others_can_read_is_warned_of(file, caplog, mode, is_warned):
    read_key_file(file("sk-canary", mode))
    assert ("can be read by other users: run chmod 600" in caplog.text) is is_warned
    assert "canary" not in caplog.text
