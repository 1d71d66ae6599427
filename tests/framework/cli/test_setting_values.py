"""Values of settings come from a file, the environment and the flags."""

import re
from pathlib import Path

import pytest

from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options, all_options
from quire.cli.setting_values import MAX_CONFIG_BYTES, OTHER_VARIABLES, read_settings
from quire.config import GROUPS
from quire.errors import QuireError, SettingsError, UsageError

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for option in all_options():
        monkeypatch.delenv(option.variable, raising=False)


def settings_of(*argv, **given):
    parser = CommandParser(("serve",))
    add_model_options(parser, GROUPS)
    return read_settings(parser.read(argv), **given)


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "quire.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_a_flag_sets_an_option():
    settings = settings_of("--max-num-seqs", "3", "--dtype", "float32", "--enable-lora")
    assert settings.scheduler.max_num_seqs == 3
    assert settings.model.dtype == "float32"
    assert settings.lora.enable_lora is True


def test_layers_of_stages_are_numbers_however_they_are_written(monkeypatch, config):
    stages = ("--pipeline-parallel-size", "3")
    written = settings_of(*stages, "--pipeline-layers", "10,12, 10").parallel.pipeline_layers
    assert written == (10, 12, 10)
    path = config("pipeline-layers: [10, 12, 10]\npipeline-parallel-size: 3\n")
    assert settings_of("--config", path).parallel.pipeline_layers == (10, 12, 10)
    with pytest.raises(SettingsError, match="pipeline_layers must be a whole number, got 'x'"):
        settings_of(*stages, "--pipeline-layers", "10,x")
    monkeypatch.setenv("QUIRE_PIPELINE_LAYERS", "10,12,10")
    assert settings_of(*stages).parallel.pipeline_layers == (10, 12, 10)


def test_a_flag_can_switch_off_what_is_on_by_default():
    assert settings_of("--no-enable-chunked-prefill").scheduler.enable_chunked_prefill is False


def test_a_variable_sets_an_option(monkeypatch):
    monkeypatch.setenv("QUIRE_MAX_NUM_SEQS", "5")
    monkeypatch.setenv("QUIRE_ENABLE_LORA", "true")
    monkeypatch.setenv("QUIRE_SAMPLERS", "default, mine")
    monkeypatch.setenv("QUIRE_SHUTDOWN_TIMEOUT_S", "1.5")
    settings = settings_of()
    assert settings.scheduler.max_num_seqs == 5
    assert settings.lora.enable_lora is True
    assert settings.parts.samplers == ("default", "mine")
    assert settings.server.shutdown_timeout_s == 1.5


def test_a_file_sets_options_by_long_flag_or_by_name(config):
    path = config("max-num-seqs: 7\nmax_num_queued: 9\nsamplers: [default, mine]\napi-key: k\n")
    settings = settings_of("--config", path)
    assert settings.scheduler.max_num_seqs == 7
    assert settings.scheduler.max_num_queued == 9
    assert settings.parts.samplers == ("default", "mine")
    assert settings.server.api_key == ("k",)


def test_a_key_that_is_a_flag_is_warned_of_without_the_key(caplog, monkeypatch):
    monkeypatch.setenv("QUIRE_ADMIN_KEY", "a,b")
    settings = settings_of("--api-key", "sk-canary-1", "--api-key", "sk-canary,2")
    assert settings.server.api_key == ("sk-canary-1", "sk-canary,2")
    assert settings.server.admin_key == ("a", "b")
    (warning,) = caplog.messages
    assert "list of processes: better set QUIRE_API_KEY, or use --api-key-file" in warning
    assert "canary" not in warning + repr(settings)


@pytest.mark.parametrize(
    "text", ["api-key: {sk-canary: 1}", "api-key: 7", "admin-key: {a: sk-canary}"]
)
def test_no_message_shows_a_key(config, text):
    with pytest.raises(QuireError, match="_key must be a list") as caught:
        settings_of("--config", config(text))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["api-key: [sk-canary\nb: 1", "api-key: !sk-canary x", "a: *sk-canary"]
)
def test_an_error_of_a_file_names_its_place_and_quotes_no_line(config, text):
    with pytest.raises(QuireError, match=r"is not YAML: see line [12], column ") as caught:
        settings_of("--config", config(text))
    assert "canary" not in str(caught.value)


def test_the_items_of_a_list_of_keys_are_not_shown(config):
    settings = settings_of("--config", config("admin-key: [[sk-canary], x]"))
    assert settings.server.admin_key == ("['sk-canary']", "x")
    assert "canary" not in repr(settings)


def test_bytes_have_units_in_every_view(config, monkeypatch):
    assert settings_of("--kv-cache-memory-bytes", "4GiB").cache.kv_cache_memory_bytes == 2**32
    path = config("max-body-bytes: 2 MB\nkv-cache-memory-bytes: 1000\n")
    assert settings_of("--config", path).server.max_body_bytes == 2_000_000
    assert settings_of("--config", path).cache.kv_cache_memory_bytes == 1000
    monkeypatch.setenv("QUIRE_KV_CACHE_MEMORY_BYTES", "3kB")
    assert settings_of().cache.kv_cache_memory_bytes == 3000
    with pytest.raises(SettingsError, match="--max-body-bytes: max_body_bytes must be a number of"):
        settings_of("--max-body-bytes", "much")


def test_options_of_a_store_may_be_a_mapping_in_a_file(config):
    path = config("kv-store: s\nkv-store-options:\n  max_bytes: 1GiB\n  step_bytes: 7\n")
    assert settings_of("--config", path).cache.store_options == {
        "max_bytes": "1GiB",
        "step_bytes": "7",
    }


def test_what_is_nearest_to_the_user_wins(config, monkeypatch):
    path = config("max-num-seqs: 1\nmax-num-queued: 1\nmax-loras: 1\nmodel: from-file\n")
    monkeypatch.setenv("QUIRE_MAX_NUM_SEQS", "2")
    monkeypatch.setenv("QUIRE_MAX_NUM_QUEUED", "2")
    settings = settings_of("--config", path, "--max-num-seqs", "3", "from-flag")
    assert settings.scheduler.max_num_seqs == 3
    assert settings.scheduler.max_num_queued == 2
    assert settings.lora.max_loras == 1
    assert settings.model.model == "from-flag"


def test_the_command_itself_may_set_an_option():
    assert settings_of(enable_lora=True, max_loras=None).lora.enable_lora is True


def test_plugins_are_named_one_at_a_time_so_the_model_is_not_taken_for_one():
    settings = settings_of("-p", "no:a", "-p", "b", "--prefer", "samplers:x=b", "my-model")
    assert settings.plugins.plugins == ("no:a", "b")
    assert settings.plugins.prefer == ("samplers:x=b",)
    assert settings.model.model == "my-model"


def test_a_list_takes_several_values_and_may_be_repeated():
    settings = settings_of("--samplers", "default", "a", "--samplers", "b,c")
    assert settings.parts.samplers == ("default", "a", "b", "c")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("QUIRE_MAX_NUM_SEQS", "many", "QUIRE_MAX_NUM_SEQS: max_num_seqs must be a whole number"),
        ("QUIRE_ENABLE_LORA", "maybe", "QUIRE_ENABLE_LORA: enable_lora must be true or false"),
        ("QUIRE_MAX_NUM_SEQS", "-1", "max_num_seqs must be at least 0"),
        ("QUIRE_DTYPE", "float8", "dtype must be one of"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=message):
        settings_of()


def test_a_variable_that_is_no_option_is_logged_with_the_nearest(monkeypatch, caplog):
    monkeypatch.setenv("QUIRE_MAX_NUM_SEQ", "3")
    settings_of()
    assert (
        "QUIRE_MAX_NUM_SEQ, which is not an option; did you mean 'QUIRE_MAX_NUM_SEQS'?"
        in caplog.text
    )


def test_variables_that_are_no_options_are_in_the_docs_and_known(monkeypatch, caplog):
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    text = re.sub(r"<!-- \[\[\[cog.*?\]\]\] -->", "", pages, flags=re.DOTALL)
    documented = {*re.findall(r"\bQUIRE_\w+", text)}
    assert documented >= OTHER_VARIABLES
    assert documented <= OTHER_VARIABLES | {option.variable for option in all_options()}
    for variable in OTHER_VARIABLES:
        monkeypatch.setenv(variable, "x")
    settings_of()
    assert "is not an option" not in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-seqs: many", "quire.yaml: max_num_seqs must be a whole number, got 'many'"),
        ("samplers: {a: 1}", "quire.yaml: samplers must be a list"),
        ("max-num-seq: 3", "quire.yaml: there is no option 'max-num-seq'; did you mean"),
        ("[1, 2]", "must contain keys and values"),
        ("a: [", "is not YAML"),
        ("a: !!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_a_wrong_file_is_named(config, text, message):
    with pytest.raises(SettingsError) as caught:
        settings_of("--config", config(text))
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"no such file: .*none.yaml"):
        settings_of("--config", str(tmp_path / "none.yaml"))


def test_an_enormous_file_is_not_read(config):
    with pytest.raises(SettingsError, match="larger than"):
        settings_of("--config", config("# " + "x" * 2**20))


def test_an_empty_file_changes_nothing(config):
    assert settings_of("--config", config("")) == settings_of()


def test_a_flag_of_no_or_zero_counts_before_everything_else(monkeypatch):
    monkeypatch.setenv("QUIRE_MAX_NUM_SEQS", "5")
    monkeypatch.setenv("QUIRE_ENABLE_LORA", "true")
    settings = settings_of("--max-num-seqs", "0", "--no-enable-lora")
    assert settings.scheduler.max_num_seqs == 0
    assert settings.lora.enable_lora is False


def test_what_a_command_leaves_open_is_the_users(monkeypatch):
    monkeypatch.setenv("QUIRE_ENABLE_LORA", "true")
    assert settings_of(enable_lora=None).lora.enable_lora is True
    assert settings_of("--max-loras", "3", max_loras=None).lora.max_loras == 3


def test_variables_of_others_are_none_of_our_business(monkeypatch, caplog):
    monkeypatch.setenv("SOME_MAX_NUM_SEQ", "3")
    settings_of()
    assert caplog.messages == []


def test_a_comma_belongs_to_the_value_of_a_flag_that_is_repeated():
    argv = ("--kv-store", "s", "--kv-store-options", "a=1,2", "--kv-store-options", "b=3")
    assert settings_of(*argv).cache.store_options == {"a": "1,2", "b": "3"}


def test_a_file_of_just_the_largest_size_is_read(config):
    text = "max-num-seqs: 3\n"
    path = config(text + "#" * (MAX_CONFIG_BYTES - len(text)))
    assert settings_of("--config", path).scheduler.max_num_seqs == 3
    path = config(text + "#" * (MAX_CONFIG_BYTES - len(text) + 1))
    with pytest.raises(SettingsError, match="larger than"):
        settings_of("--config", path)


@pytest.mark.parametrize("text", ["[1]", "3", "text"])
def test_a_file_holds_keys_and_values(config, text):
    with pytest.raises(SettingsError, match="must contain keys and values"):
        settings_of("--config", config(text))


def hint_of(*argv):
    with pytest.raises(UsageError) as caught:
        settings_of(*argv)
    return caught.value.hint


def test_an_error_says_which_flag_set_the_option():
    hint = "max_num_seqs is set by --max-num-seqs; see `quire serve --help`"
    assert hint_of("--max-num-seqs", "-1") == hint


def test_an_error_says_which_variable_or_file_set_the_option(monkeypatch, config):
    path = config("max-body-bytes: 7\n")
    monkeypatch.setenv("QUIRE_MAX_RECEIVED_BYTES", "3")
    assert hint_of("--config", path) == (
        "max_received_bytes is set by QUIRE_MAX_RECEIVED_BYTES and max_body_bytes is set by "
        f"{path}: max-body-bytes; see `quire serve --help`"
    )


def test_an_origin_that_the_error_names_itself_is_not_repeated(config):
    assert hint_of("--config", config("max-num-seqs: many")) == "see `quire serve --help`"


def test_the_model_is_a_word_or_a_flag():
    assert settings_of("mine").model.model == "mine"
    assert settings_of("--model", "mine").model.model == "mine"
    assert settings_of("-m", "mine").model.model == "mine"


def test_two_models_are_refused():
    with pytest.raises(UsageError, match="model is given twice: 'a' and 'b'"):
        settings_of("-m", "a", "b")


def test_a_file_that_cannot_be_read_as_text_says_so(tmp_path):
    path = tmp_path / "quire.yaml"
    path.write_bytes(b"port: 80\n# \xff\n")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        settings_of("--config", str(path))
    with pytest.raises(UsageError, match="is no file"):
        settings_of("--config", str(tmp_path))


@pytest.mark.parametrize("again", ["max-num-seqs: 3", "max_num_seqs: 3"])
def test_a_key_that_stands_twice_in_a_file_is_refused(config, again):
    path = config(f"max-num-seqs: 2\ndtype: float32\n{again}\n")
    with pytest.raises(UsageError, match=f"{again[:12]} is set twice"):
        settings_of("--config", path)
