"""`quire explain`: what would serve a model and what its memory is for, before anything loads."""

import json
import os
import subprocess
import sys

import pytest
from gpu_driver import build_driver
from installed import sites

from quire import __version__
from quire.cli.explain import describe_memory
from quire.cli.main import main
from quire.config import SchedulerSettings
from quire.launch.estimate import MemoryEstimate
from quire.testing.checkpoints import write_checkpoint

site = pytest.fixture(sites)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("m")
    sizes = {"num_hidden_layers": 7, "sliding_window": 32, "sliding_window_pattern": 3}
    write_checkpoint(folder, "Gemma3ForCausalLM", max_position_embeddings=4096, **sizes)
    return str(folder)


def explained(capsys, *argv):
    status = main(["explain", *argv])
    return status, capsys.readouterr().out


def memory_of(capsys, *argv):
    status, out = explained(capsys, *argv, "--json")
    return status, json.loads(out)["memory"]


def test_the_plan_is_printed_before_anything_is_loaded(mixed, capsys):
    status, out = explained(capsys, mixed, "--num-kv-blocks", "1001", "--block-size", "8")
    assert status == 0
    assert "1,000 blocks of 8 tokens" in out
    assert "the size that num_kv_blocks sets" in out
    assert "sliding_window (window 32)" in out
    assert "requests of 1,024 tokens fit at the same time" in out
    assert "run at the same time, at most (max_num_seqs)" in out


def test_the_numbers_add_up(mixed, capsys):
    options = ("--num-kv-blocks", "1001", "--max-num-batched-tokens", "64")
    status, memory = memory_of(capsys, mixed, *options)
    assert status == 0
    # 2 full layers and 5 windows in groups of 2: 1 + 3 groups, of which one has 1 idle page.
    assert [group["layers"] for group in memory["groups"]] == [2, 2, 1, 2]
    # A page: K and V * 16 tokens * 2 heads * 16 numbers * 4 bytes = 4,096; two tensors.
    assert {group["page_bytes"] for group in memory["groups"]} == {2 * 4096}
    assert [group["padding_bytes"] for group in memory["groups"]] == [0, 0, 4096, 0]
    assert memory["bytes_a_token"] == 4 * 2 * 4096 // 16
    assert memory["cache_bytes"] == 1001 * 2 * 4096
    assert (memory["num_blocks"], memory["block_size"]) == (1000, 16)
    # Of 1,024 tokens 1,023 are computed: 64 blocks of full attention. Under a window of 32 lie 3
    # blocks when it decodes (1 + ceil(31 / 16)), and 7 in a step of 64 (1 + ceil(94 / 16)), in 3
    # groups. 1 + (1,000 - 64 - 21) // (64 + 9) = 13 requests.
    assert {"tokens": 1024, "requests": 13} in memory["fits"]


def test_a_length_that_the_cache_does_not_hold_is_shown_as_it_will_be(mixed, capsys):
    _, out = explained(capsys, mixed, "--num-kv-blocks", "101", "--json")
    result = json.loads(out)
    assert 0 < result["max_model_len"] < result["model_length"] == 4096
    assert result["memory"]["max_model_len"] == result["max_model_len"]


def test_what_the_user_sets_is_followed(mixed, capsys):
    _, few = memory_of(capsys, mixed, "--max-num-seqs", "2", "--max-model-len", "100")
    assert few["max_model_len"] == 100
    assert few["fits"][-1]["tokens"] == 100
    # Four groups of ceil(100 / 16) blocks, for two requests that run and prefixes of 16 more.
    assert few["num_blocks"] == (2 + 16) * 4 * 7
    bare = ("--max-num-seqs", "2", "--max-model-len", "100", "--no-enable-prefix-caching")
    assert memory_of(capsys, mixed, *bare)[1]["num_blocks"] == 2 * 4 * 7
    _, given = memory_of(capsys, mixed, "--kv-cache-memory-bytes", "5000000")
    assert 5_000_000 - 2 * 4096 < given["cache_bytes"] <= 5_000_000


def test_what_limits_the_cache_is_named(mixed, capsys):
    _, out = explained(capsys, mixed, "--max-num-seqs", "2", "--max-model-len", "100")
    assert "as much as 2 requests can use (max_num_seqs), and 16 more to keep prefixes" in out
    _, out = explained(
        capsys, mixed, "--max-num-seqs", "2", "--max-model-len", "100", "--no-enable-prefix-caching"
    )
    assert "as much as 2 requests can use (max_num_seqs)\n" in out
    _, out = explained(capsys, mixed, "--kv-cache-memory-bytes", "5000000")
    assert "all the memory that it may use" in out


def test_a_cache_that_does_not_fit_names_the_option_that_helps(mixed, capsys):
    argv = (mixed, "--kv-cache-memory-bytes", "1000000", "--max-model-len", "4000")
    status, out = explained(capsys, *argv)
    assert status == 1
    assert "does not fit" in out
    assert "set max_model_len to at most" in out
    assert "(kv_cache_memory_bytes)" in out
    assert "attention backend" in out, "the parts are shown all the same"
    status, memory = memory_of(capsys, *argv)
    assert status == 1
    assert memory["num_blocks"] is None
    needed = memory["problem"].partition(" bytes (kv_cache_memory_bytes)")[0].split()[-1]
    status, memory = memory_of(
        capsys, mixed, "--kv-cache-memory-bytes", needed.replace(",", ""), *argv[3:]
    )
    assert (status, memory["problem"]) == (0, None), "the advice works"
    assert memory["max_model_len"] == 4000


def test_the_demo_fits(capsys):
    status, memory = memory_of(capsys, "demo")
    assert status == 0
    assert memory["weight_bytes"] == 1_771_456 * 4
    assert memory["fits"][0]["requests"] >= 1


def test_what_only_start_up_can_tell_is_no_failure(mixed, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "no such device")
    status, out = explained(capsys, mixed, "--device", "cuda")
    assert status == 0
    assert "known at start-up, unless kv_cache_memory_bytes or num_kv_blocks is set" in out
    status, out = explained(capsys, mixed, "--device", "cuda", "--num-kv-blocks", "50")
    assert "49 blocks" in out


GIB = 2**30
GPU = {"weights", "others", "largest step", "slot tables", "attention workspace", "CUDA graphs"}


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    build_driver(folder)
    return folder


def explained_on_gpu(driver, visible, *argv, **environment):
    """Explain for a machine with a driver of two GPUs, with 70 and 7 of 80 GiB free."""
    there = {"LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": visible} | environment
    command = [sys.executable, "-m", "quire.cli", "explain", *argv, "--device", "cuda"]
    result = subprocess.run(command, env=os.environ | there, capture_output=True, text=True)
    assert result.returncode in (0, 1), result.stderr
    return result.returncode, result.stdout


def test_on_a_gpu_all_parts_of_its_memory_are_estimated(driver, mixed):
    status, out = explained_on_gpu(driver, "0", mixed)
    assert status == 0
    assert "gpu_memory_utilization 0.9, and the other uses of the GPU's memory" in out
    for part in ("others", "largest step", "slot tables"):
        (line,) = [line for line in out.splitlines() if line.startswith(part)]
        assert line.endswith(", estimated")
    status, out = explained_on_gpu(driver, "0", mixed, "--json", "--gpu-memory-utilization", "0.5")
    memory = json.loads(out)["memory"]
    parts = memory["estimated_bytes"]
    assert set(parts) == GPU
    assert parts["weights"] == memory["weight_bytes"]
    assert parts["others"] > 10 * GIB
    assert memory["max_cache_bytes"] == 40 * GIB - sum(parts.values())
    assert memory["max_cache_bytes"] - 10**5 < memory["cache_bytes"] <= memory["max_cache_bytes"]


ANY_GRID = """
    from quire import hookimpl
    from quire.interfaces.executor import ExecutorCapabilities

    @hookimpl
    def register_executors(registry):
        any_grid = ExecutorCapabilities(None, None)
        registry.add("acme", "quire.errors:QuireError", capabilities=any_grid, api=2)
"""
FOUR = ("--executor", "acme", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")


def test_what_each_rank_would_hold_is_shown_before_anything_is_loaded(site, mixed, capsys):
    site.install("acme", ANY_GRID)
    status, out = explained(capsys, mixed, *FOUR, "--num-kv-blocks", "101")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    (start,) = [index for index, line in enumerate(lines) if line[:2] == ["rank", "stage"]]
    rows = lines[start + 1 : start + 5]
    assert [row[:6] for row in rows] == [
        ["0", "0", "0", "0-3", "2", "1"],
        ["1", "0", "1", "0-3", "2", "1"],
        ["2", "1", "0", "4-6", "2", "1"],
        ["3", "1", "1", "4-6", "2", "1"],
    ]
    assert {row[-1] for row in rows} == {"100"}
    assert "tensor_parallel_size 2, pipeline_parallel_size 2: layers 0-3, 4-6" in out
    facts = memory_of(capsys, mixed, *FOUR, "--num-kv-blocks", "101")[1]
    assert [rank["rank"] for rank in facts["ranks"]] == [0, 1, 2, 3]
    assert [rank["layers"] for rank in facts["ranks"]] == [[0, 3], [0, 3], [4, 6], [4, 6]]
    largest = max(facts["ranks"], key=lambda rank: rank["cache_bytes"])
    assert facts["cache_bytes"] == largest["cache_bytes"]
    assert all(rank["num_blocks"] == 100 and rank["weight_bytes"] for rank in facts["ranks"])


def test_one_rank_has_no_table_but_data(mixed, capsys):
    _, out = explained(capsys, mixed, "--num-kv-blocks", "101")
    assert "tp rank" not in out
    assert "workers" not in out
    (rank,) = memory_of(capsys, mixed, "--num-kv-blocks", "101")[1]["ranks"]
    assert (rank["heads"], rank["kv_heads"], rank["layers"]) == (4, 2, [0, 6])


def test_the_all_reduce_of_ranks_is_explained(site, mixed, capsys):
    site.install("acme", ANY_GRID)
    assert "all reduce" not in explained(capsys, mixed)[1]
    assert "all reduce         shared memory on one machine" in explained(capsys, mixed, *FOUR)[1]
    off = (*FOUR, "--device", "cuda", "--no-symmetric-memory")
    out = explained(capsys, mixed, *off)[1]
    assert "all reduce         NCCL (--no-symmetric-memory)" in out


def test_ranks_of_unknown_gpus_have_unknown_caches(site, mixed, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "no such device")
    site.install("acme", ANY_GRID)
    status, out = explained(capsys, mixed, *FOUR, "--device", "cuda")
    assert status == 0
    assert out.count("unknown  unknown") == 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--tensor-parallel-size", "0"), "tensor_parallel_size must be at least 1"),
        (("--tensor-parallel-size", "3"), "sizes that work for this model: 1, 2, 4"),
        (("--pipeline-parallel-size", "8"), "more than the model's 7 layers; set it to at most 7"),
        (
            ("--pipeline-parallel-size", "2", "--pipeline-layers", "3,3"),
            "the last number must be 4",
        ),
    ],
)
def test_a_grid_that_cannot_run_names_one_that_can(site, mixed, capsys, argv, message):
    site.install("acme", ANY_GRID)
    assert main(["explain", mixed, "--executor", "acme", *argv]) != 0
    assert message in capsys.readouterr().err


def test_each_rank_is_estimated_on_its_own_gpu(driver, site, mixed):
    """Rank 1 has the GPU that others fill."""
    site.install("acme", ANY_GRID)
    two = ("--executor", "acme", "--pipeline-parallel-size", "2", "--kernels", "torch")
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    status, out = explained_on_gpu(driver, "0,1", mixed, "--json", *two, **paths)
    problem = json.loads(out)["memory"]["problem"]
    assert (status, problem.startswith("rank 1 (pipeline stage 1): the KV cache needs")) == (
        1,
        True,
    )
    status, out = explained_on_gpu(driver, "1,0", mixed, "--json", *two, **paths)
    problem = json.loads(out)["memory"]["problem"]
    assert (status, problem.startswith("rank 0 (pipeline stage 0): the KV cache needs")) == (
        1,
        True,
    )


def test_a_gpu_that_others_fill_needs_a_larger_fraction_which_is_shown(driver, mixed):
    status, out = explained_on_gpu(driver, "1", mixed, "--json")
    problem = json.loads(out)["memory"]["problem"]
    assert status == 1
    assert "by an estimate of what a step takes" in problem
    fraction = problem.rpartition("set gpu_memory_utilization to at least ")[2]
    status, _ = explained_on_gpu(driver, "1", mixed, "--gpu-memory-utilization", fraction)
    assert status == 0, "the advice works"


def test_a_cache_of_a_given_size_must_fit_beside_the_rest(driver, mixed):
    argv = (mixed, "--json", "--kv-cache-memory-bytes")
    status, out = explained_on_gpu(driver, "1", *argv, "7GiB")
    problem = json.loads(out)["memory"]["problem"]
    assert status == 1
    most = problem.rpartition("set kv_cache_memory_bytes to at most ")[2].replace(",", "")
    assert explained_on_gpu(driver, "1", *argv, most)[0] == 0, "the advice works"
    status, out = explained_on_gpu(driver, "1", mixed, "--num-kv-blocks", "1000000")
    assert status == 1
    assert "set a smaller num_kv_blocks" in out


def test_kernels_kv_type_and_graphs_are_shown(driver, mixed, capsys):
    argv = (mixed, "--kv-cache-dtype", "int8", "--device", "cpu", "--kernels", "torch")
    _, out = explained(capsys, *argv)
    facts = [line.split(maxsplit=3) for line in out.splitlines()[:15]]
    assert ["kv", "cache", "dtype", "int8"] in facts
    assert ["kernels", "torch", "(asked", "for)"] in facts
    assert "cuda graphs        none on this cpu" in out
    _, out = explained_on_gpu(driver, "0", mixed, "--enforce-eager", "--kernels", "torch")
    assert "cuda graphs        none: --enforce-eager" in out


def test_how_weights_are_kept_is_shown_and_counted(mixed, capsys):
    """The model's embedding is its head as well."""
    _, plain = explained(capsys, mixed, "--quantization", "none", "--json")
    _, packed = explained(capsys, mixed, "--quantization", "int8", "--json")
    dense, packed = json.loads(plain), json.loads(packed)
    assert dense["weights"] == "float32 (asked for)"
    assert packed["weights"] == "int8 (asked for)"
    ratio = dense["memory"]["weight_bytes"] / packed["memory"]["weight_bytes"]
    assert ratio == pytest.approx(32 / 8.125, rel=1e-3)
    (part,) = [part for part in packed["parts"] if part["kind"] == "quantizations"]
    assert (part["name"], part["why"]) == ("int8", "asked for")
    assert {"name": "int4", "reason": "not asked for"} in part["rejected"]


def test_the_memory_of_nothing_is_data_too():
    facts = describe_memory(
        MemoryEstimate(10, None, "nothing", problem="none"), SchedulerSettings().for_device("cpu")
    )
    assert (facts["weight_bytes"], facts["num_blocks"], facts["groups"]) == (10, None, [])
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.parametrize("option", ["--num-kv-blocks", "--kv-cache-memory-bytes"])
def test_a_cache_that_is_larger_than_what_is_free_does_not_fit(capsys, option):
    given = "10000000" if option == "--num-kv-blocks" else "300GiB"
    status, memory = memory_of(capsys, "demo", option, given)
    assert status == 1
    assert memory["num_blocks"] is None
    assert "free on this cpu beside the weights" in memory["problem"]
    assert f"set a smaller {option[2:].replace('-', '_')}" in memory["problem"]
    room = memory["problem"].partition(" blocks; set")[0].split()[-1].replace(",", "")
    fewer = str(int(room) // 2)  # others use this machine too
    assert explained(capsys, "demo", "--num-kv-blocks", fewer)[0] == 0, "the advice works"


def test_no_more_run_than_a_step_has_tokens(capsys):
    options = ("demo", "--max-num-batched-tokens", "4")
    _, out = explained(capsys, *options)
    assert "     4 run at the same time, at most (max_num_batched_tokens)" in out
    assert memory_of(capsys, *options)[1]["max_running"] == 4
    _, out = explained(capsys, "demo", "--max-num-seqs", "3")
    assert "     3 run at the same time, at most (max_num_seqs)" in out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("max_bytes=abc", "max_bytes must be a number of bytes"),
        ("foo=1", "no option 'foo'"),
        ("max_bytes=1", "raise max_bytes"),
    ],
)
def test_options_of_a_kv_store_that_cannot_work_are_refused(capsys, given, message):
    store = ("--kv-store", "host_memory")
    assert main(["explain", "demo", *store, "--kv-store-options", given]) != 0
    assert message in capsys.readouterr().err
    assert explained(capsys, "demo", *store, "--kv-store-options", "max_bytes=1GiB")[0] == 0


OFFERS_OURS = """
    from quire import hookimpl
    import quire_demo.plugin
    import quire_kv_cache_specs.plugin

    @hookimpl
    def register_checkpoints(registry):
        quire_demo.plugin.register_checkpoints(registry)

    @hookimpl
    def register_kv_cache_specs(registry):
        quire_kv_cache_specs.plugin.register_kv_cache_specs(registry)
"""


def test_the_plugin_that_ships_the_checkpoint_and_the_offers_passed_over_are_shown(site, capsys):
    site.install("acme", OFFERS_OURS)
    status, out = explained(capsys, "demo")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert status == 0
    assert f"shipped by quire_demo (quire {__version__})" in lines
    assert (
        "not demo of acme (acme 1.0): quire's own is used; --prefer checkpoints:demo=acme would "
        "use it"
    ) in lines
    (part, *_) = json.loads(explained(capsys, "demo", "--json")[1])["parts"]
    assert (part["kind"], part["plugin"]) == ("checkpoints", "quire_demo")
    assert [rejection["name"] for rejection in part["rejected"]] == ["demo of acme (acme 1.0)"]
    assert (
        "not full_attention of acme (acme 1.0): quire's own is used; --prefer "
        "kv_cache_specs:full_attention=acme would use it"
    ) in lines
    prefer = ("--prefer", "checkpoints:demo=acme", "--prefer", "kv_cache_specs:full_attention=acme")
    _, out = explained(capsys, "demo", *prefer)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "shipped by acme (acme 1.0)" in lines
    assert any(line.startswith("from acme (acme 1.0); named by the model") for line in lines)
    assert "would use it" not in out


def test_a_folder_is_shipped_by_no_plugin(mixed, capsys):
    _, out = explained(capsys, mixed)
    assert "shipped by" not in out
