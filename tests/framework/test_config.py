from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from quire.config import GROUPS, METRICS_NAMES, ModelSettings, ServerSettings, Settings
from quire.errors import SettingsError


def refusal(**options):
    with pytest.raises(SettingsError) as caught:
        Settings.from_options(options)
    return str(caught.value)


def test_without_options_everything_has_its_default():
    assert Settings.from_options({}) == Settings()


def test_an_option_finds_its_group():
    settings = Settings.from_options({"max_num_seqs": 3, "dtype": "float32", "port": 0})
    assert settings.scheduler.max_num_seqs == 3
    assert settings.model.dtype == "float32"
    assert settings.server.port == 0


def test_no_two_groups_have_an_option_of_the_same_name():
    names = [option.name for kind in GROUPS.values() for option in fields(kind)]
    assert len(names) == len(set(names))


def test_every_option_has_a_help_text_of_one_sentence():
    for kind in GROUPS.values():
        for option in fields(kind):
            help_text = option.metadata["help"]
            assert help_text.endswith("."), option.name
            assert len(help_text) > 15, option.name


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(FrozenInstanceError):
        Settings().model.model = "other"


def test_an_unknown_option_is_refused_with_the_nearest():
    message = refusal(max_num_seq=3)
    assert "no option 'max_num_seq'; did you mean 'max_num_seqs'?" in message


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("dtype", "float64", "dtype must be one of auto, float32, bfloat16, float16"),
        ("load_format", "pickle", "load_format must be one of auto, safetensors, dummy"),
        ("max_model_len", 1, "max_model_len must be at least 2, got 1"),
        ("threads", -1, "threads must be at least 1"),
        ("block_size", 0, "block_size must be a power of two, got 0"),
        ("block_size", 24, "block_size must be a power of two, got 24"),
        ("num_kv_blocks", 1, "num_kv_blocks must be at least 2"),
        ("kv_cache_memory_bytes", 0, "kv_cache_memory_bytes must be at least 1"),
        ("max_num_seqs", -1, "max_num_seqs must be at least 0"),
        ("max_num_batched_tokens", -1, "max_num_batched_tokens must be at least 0"),
        ("max_num_queued", 0, "max_num_queued must be at least 1"),
        ("max_queue_wait_s", -1.0, "max_queue_wait_s must be at least 0"),
        ("tensor_parallel_size", 0, "tensor_parallel_size must be at least 1"),
        ("pipeline_parallel_size", 0, "pipeline_parallel_size must be at least 1, got 0"),
        ("pipeline_parallel_size", -2, "pipeline_parallel_size must be at least 1, got -2"),
        ("pipeline_layers", [3, 0], "each number of pipeline_layers must be at least 1, got 0"),
        ("max_loras", 0, "max_loras must be at least 1"),
        ("max_lora_rank", 0, "max_lora_rank must be at least 1"),
        ("grammar_timeout_s", 0.0, "grammar_timeout_s must be more than 0"),
        ("port", 65536, "port must be from 0 to 65535, got 65536"),
        ("port", -1, "port must be from 0 to 65535"),
        ("max_body_bytes", 0, "max_body_bytes must be at least 1"),
        ("max_received_bytes", 10, "max_received_bytes is 10, less than one body may have"),
        ("shutdown_timeout_s", -1.0, "shutdown_timeout_s must be at least 0"),
        ("api_key", ["k", ""], "api_key is empty"),
        ("admin_key", [""], "admin_key is empty"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(option, value, message):
    assert message in refusal(**{option: value})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_num_seqs", "8", "max_num_seqs must be a whole number, got '8'"),
        ("max_num_seqs", 8.0, "a whole number"),
        ("max_num_seqs", True, "a whole number"),
        ("max_num_seqs", None, "a whole number"),
        ("enable_lora", "yes", "enable_lora must be true or false, got 'yes'"),
        ("enable_lora", 1, "true or false"),
        ("shutdown_timeout_s", "1", "shutdown_timeout_s must be a number"),
        ("shutdown_timeout_s", float("nan"), "must be a number"),
        ("step_timeout_s", 1e12, "at most 1000000 seconds (11 days), got 1e+12"),
        ("step_timeout_s", 0.5, "step_timeout_s must be at least 1 and"),
        ("step_timeout_s", float("nan"), "must be a number"),
        ("worker_start_timeout_s", 1e7, "at most 1000000 seconds (11 days), got 1e+07"),
        ("worker_start_timeout_s", -3, "worker_start_timeout_s must be at least 1 and"),
        ("samplers", "default", "samplers must be a list of strings, got 'default'"),
        ("samplers", [1], "a list of strings"),
        ("pipeline_layers", ["3"], "pipeline_layers must be a list of whole numbers, got ['3']"),
        ("pipeline_layers", [3, True], "a list of whole numbers"),
        ("pipeline_layers", 3, "a list of whole numbers"),
        ("model", 3, "model must be text, got 3"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(option, value, message):
    assert message in refusal(**{option: value})


def test_python_callers_may_write_lists_paths_and_whole_numbers():
    settings = Settings.from_options(
        {"samplers": ["default", "mine"], "model": Path("a") / "b", "shutdown_timeout_s": 3}
    )
    assert settings.parts.samplers == ("default", "mine")
    assert settings.model.model == str(Path("a") / "b")
    assert settings.server.shutdown_timeout_s == 3.0


@pytest.mark.parametrize("stages", [{}, {"pipeline_parallel_size": 2}], ids=str)
def test_layers_of_other_stages_are_refused_with_the_number_that_works(stages):
    message = refusal(pipeline_layers=[10, 12, 10], **stages)
    assert message.startswith("pipeline_layers 10,12,10 is for 3 stages, and pipeline_parallel_")
    assert "set pipeline_parallel_size to 3" in message
    few = refusal(pipeline_layers=[10], pipeline_parallel_size=3)
    assert few.startswith("pipeline_layers 10 is for 1 stage, and pipeline_parallel_size is 3; set")
    given = Settings.from_options({"pipeline_layers": [10, 12, 10], "pipeline_parallel_size": 3})
    assert given.parallel.pipeline_layers == (10, 12, 10)


def test_none_leaves_an_optional_option_to_the_machine():
    assert Settings.from_options({"max_model_len": None}).model.max_model_len is None


def test_a_group_checks_itself_however_it_is_built():
    with pytest.raises(SettingsError, match="max_model_len must be at least 2"):
        ModelSettings(max_model_len=-5)


def test_bytes_may_be_written_with_a_unit():
    assert Settings.from_options(
        {"kv_cache_memory_bytes": "4GiB", "max_body_bytes": "10 MB"}
    ) == Settings.from_options({"kv_cache_memory_bytes": 4 * 2**30, "max_body_bytes": 10**7})
    assert "kv_cache_memory_bytes must be a number of bytes" in refusal(kv_cache_memory_bytes="4gb")
    assert "must be at least 1" in refusal(kv_cache_memory_bytes="0")
    assert "a whole number, got '8'" in refusal(max_num_seqs="8")


def test_options_of_a_kv_store_may_be_a_mapping():
    given = {"kv_store": "host_memory", "kv_store_options": {"max_bytes": "1GiB", "step_bytes": 1}}
    assert Settings.from_options(given).cache.store_options == {
        "max_bytes": "1GiB",
        "step_bytes": "1",
    }
    message = refusal(kv_store="host_memory", kv_store_options={"max_bytes": None})
    assert "kv_store_options must have text or numbers, got 'max_bytes': None" in message
    assert "a list of strings" in refusal(samplers={"default": "1"})


def test_options_for_a_store_that_is_not_chosen_are_refused():
    assert "name one with kv_store" in refusal(kv_store_options=["max_bytes=1GiB"])


def test_two_sizes_of_the_cache_are_refused():
    message = refusal(num_kv_blocks=40, kv_cache_memory_bytes=10**6)
    assert "num_kv_blocks 40 and kv_cache_memory_bytes 1000000 both set" in message


@pytest.mark.parametrize(("device", "sizes"), [("cpu", (64, 2048)), ("cuda", (256, 8192))])
def test_the_device_decides_the_sizes_of_a_step_that_were_not_given(device, sizes):
    scheduler = Settings().for_device(device).scheduler
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == sizes
    given = Settings.from_options({"max_num_seqs": 3}).for_device(device).scheduler
    assert (given.max_num_seqs, given.max_num_batched_tokens) == (3, sizes[1])


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("max_model_len", 2), ("max_cuda_graph_size", 1), ("threads", 1), ("num_kv_blocks", 2),
        ("kv_cache_memory_bytes", 1), ("max_num_partial_prefills", 1), ("max_num_queued", 1),
        ("max_long_partial_prefills", 1), ("long_prefill_token_threshold", 0), ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0), ("tensor_parallel_size", 1), ("max_loras", 1),
        ("max_lora_rank", 1), ("max_body_bytes", 1), ("shutdown_timeout_s", 0), ("port", 0),
        ("block_size", 1),
    ],
)  # fmt: skip
def test_the_least_number_is_taken_and_no_smaller_one(name, least):
    Settings.from_options({name: least})
    assert name in refusal(**{name: least - 1})


@pytest.mark.parametrize("name", ["request_timeout_s", "grammar_timeout_s", "kv_store_timeout_s"])
def test_a_time_limit_is_more_than_nothing(name):
    Settings.from_options({name: 0.001})
    assert f"{name} must be more than 0, got 0" in refusal(**{name: 0})
    assert name in refusal(**{name: -1.0})


def test_all_of_a_gpus_memory_may_be_used_and_no_more():
    assert Settings.from_options({"gpu_memory_utilization": 1.0})
    assert "at most 1, got 1.001" in refusal(gpu_memory_utilization=1.001)
    assert "more than 0" in refusal(gpu_memory_utilization=0)


@pytest.mark.parametrize(("port", "is_one"), [(65535, True), (65536, False)])
def test_the_last_port_is_65535(port, is_one):
    if is_one:
        assert Settings.from_options({"port": port}).server.port == port
    else:
        assert "port must be from 0 to 65535, got 65536" in refusal(port=port)


def test_a_store_needs_the_names_of_cached_blocks():
    assert "needs enable_prefix_caching" in refusal(kv_store="s", enable_prefix_caching=False)
    assert Settings.from_options({"kv_store": "s"}).cache.kv_store == "s"
    assert Settings.from_options({"enable_prefix_caching": False}).cache.kv_store == "none"


def test_a_stores_option_may_hold_an_equals_sign_and_the_last_one_counts():
    given = ["path=/a=b", "size=1", "size=2"]
    cache = Settings.from_options({"kv_store": "s", "kv_store_options": given}).cache
    assert cache.store_options == {"path": "/a=b", "size": "2"}
    assert "KEY=VALUE" in refusal(kv_store="s", kv_store_options=["=1"])
    assert "KEY=VALUE" in refusal(kv_store="s", kv_store_options=["size"])
    assert "no KV store is chosen" in refusal(kv_store_options=["size=1"])


def test_options_of_a_lora_source_are_pairs_and_need_lora():
    given = ["root=/a=b", "tag=1", "tag=2"]
    lora = Settings.from_options({"enable_lora": True, "lora_source_options": given}).lora
    assert lora.source_options == {"root": "/a=b", "tag": "2"}
    assert "KEY=VALUE" in refusal(enable_lora=True, lora_source_options=["tag"])
    assert "LoRA is off; set enable_lora" in refusal(lora_source_options=["tag=1"])
    assert "LoRA is off; set enable_lora" in refusal(lora_modules=["pirate"])


@pytest.mark.parametrize(
    ("wanted", "stored"),
    [("auto", "bfloat16"), ("fp8", "float8_e4m3fn"), ("fp8_e4m3", "float8_e4m3fn"),
     ("int8", "int8"), ("float32", "float32")],
)  # fmt: skip
def test_the_cache_has_the_compute_type_or_what_is_asked_for(wanted, stored):
    cache = Settings.from_options({"kv_cache_dtype": wanted}).cache
    assert cache.kv_dtype("bfloat16") == stored


def test_two_sizes_of_the_cache_contradict_each_other():
    assert "give only one" in refusal(num_kv_blocks=2, kv_cache_memory_bytes=1)


@pytest.mark.parametrize(
    ("device", "sizes"), [("cpu", (64, 2048)), ("cuda", (256, 8192)), ("tpu", (64, 2048))]
)
def test_the_device_decides_sizes_that_the_user_leaves_open(device, sizes):
    def sizes_of(**options):
        scheduler = Settings.from_options(options).for_device(device).scheduler
        return scheduler.max_num_seqs, scheduler.max_num_batched_tokens

    assert sizes_of() == sizes
    assert sizes_of(max_num_seqs=3) == (3, sizes[1])
    assert sizes_of(max_num_batched_tokens=3) == (sizes[0], 3)


def test_no_more_requests_run_than_a_step_has_tokens():
    def most(**options):
        return Settings.from_options(options).scheduler.max_running

    assert most(max_num_seqs=8, max_num_batched_tokens=5) == 5
    assert most(max_num_seqs=5, max_num_batched_tokens=8) == 5


def test_an_option_of_another_engine_names_ours():
    with pytest.raises(SettingsError, match="its name goes into the option samplers"):
        Settings.from_options({"logits_processors": ["acme.steps:Loud"]})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"api_server_count": 0}, "from 1 to 64, got 0"),
        ({"api_server_count": 65}, "from 1 to 64, got 65"),
        ({"api_server_count": 2, "engine_process": False}, "a process of its own"),
        ({"api_server_count": 2, "data_parallel_size": 2}, "cannot share several replicas"),
        ({"api_server_count": 17}, "less than one body may have"),
    ],
)
def test_several_front_ends_are_refused_where_they_cannot_share(options, why):
    with pytest.raises(SettingsError, match=why):
        Settings.from_options(options)


def test_several_front_ends_share_one_engine():
    assert Settings.from_options({"api_server_count": 16}).server.api_server_count == 16


def test_what_is_allowed_for_the_names_of_metrics_is_offered_to_shells():
    (found,) = [each for each in fields(ServerSettings) if each.name == "metrics_names"]
    assert found.metadata["choices"] == METRICS_NAMES
