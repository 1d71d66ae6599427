"""The CPU benchmark: its arithmetic, its verdicts, and the turns of the engines."""

import importlib
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cpu"
RESULTS = FOLDER.parent / "results"


def rounds_of(*pairs):
    return [{"figures": {"quire": {"tok_s": a}, "peer": {"tok_s": b}}} for a, b in pairs]


def test_turns_begin_one_later_and_every_second_round_is_reversed(benchmark):
    seen = []

    def turn(label):
        seen.append(label)
        return {"tok_s": float(len(seen))}

    rounds = list(benchmark("turns").take_turns(["a", "b", "c"], 4, turn))
    assert "".join(seen) == "abcacbcabcba"
    assert [list(each["figures"]) for each in rounds] == [["a", "b", "c"]] * 4
    assert rounds[1]["figures"]["c"] == {"tok_s": 5.0}
    assert all(0 <= each["stolen"] <= 1 and 0 <= each["others"] <= 1 for each in rounds)


@given(st.integers(2, 12), st.integers(1, 40))
def test_no_engine_runs_twice_in_a_row(count, rounds):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        order = importlib.import_module("turns").order
    labels = [str(number) for number in range(count)]
    run = [label for index in range(rounds) for label in order(labels, index)]
    assert all(label != after for label, after in pairwise(run))
    assert sorted(order(labels, rounds)) == sorted(labels)


def test_an_engine_that_fails_is_left_out_and_the_others_go_on(benchmark):
    failed = benchmark("engine_process").EngineFailedError
    seen = []

    def turn(label):
        seen.append(label)
        if seen.count("b") == 2 and label == "b":
            raise failed("b: it has ended")
        return {"tok_s": 1.0}

    rounds = list(benchmark("turns").take_turns(["a", "b"], 3, turn))
    assert [list(each["figures"]) for each in rounds] == [["a", "b"], ["a"], ["a"]]
    assert [each["failed"] for each in rounds] == [{}, {"b": "b: it has ended"}, {}]
    ratio = benchmark("figures").ratios(rounds, "a", "b", "tok_s")
    assert ratio["pairs"] == 1


def test_time_of_our_children_is_not_that_of_others(benchmark):
    times = benchmark("turns").CpuTimes
    before = times.now()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        time.sleep(0.5)
        living = times.now()
        process.kill()
    ended = times.now()
    assert living.ours - before.ours > 0.05 * (living.all - before.all) / (os.cpu_count() or 1)
    assert ended.ours >= living.ours
    assert ended.busy - before.busy >= ended.ours - before.ours - 10


def test_a_ratio_is_the_median_of_the_rounds_ratios_and_not_the_ratio_of_medians(benchmark):
    found = benchmark("figures").ratios(
        rounds_of((2, 1), (30, 10), (8, 2)), "quire", "peer", "tok_s"
    )
    assert found["samples"] == [2, 3, 4]
    assert found["median"] == 3
    assert found["interval"] == (2, 4)
    assert found["coverage"] == 0.75


@pytest.mark.parametrize(
    ("count", "ends", "percent"), [(5, (1, 5), 93.75), (7, (1, 7), 98.4), (9, (2, 8), 96.1)]
)
def test_an_interval_goes_between_samples_and_says_how_often_it_holds(
    benchmark, count, ends, percent
):
    found = benchmark("figures").summary([float(number) for number in range(1, count + 1)])
    assert found["interval"] == ends
    assert 100 * found["coverage"] == pytest.approx(percent, abs=0.05)


def test_the_coverage_is_what_random_samples_show(benchmark):
    rng = random.Random(0)
    summary = benchmark("figures").summary
    held = 0
    for _ in range(2000):
        low, high = summary([rng.expovariate(1) for _ in range(9)])["interval"]
        held += low <= math.log(2) <= high
    assert held / 2000 == pytest.approx(0.961, abs=0.015)


def test_completions_are_compared_up_to_the_first_difference(benchmark):
    agreement = benchmark("figures").agreement
    assert agreement([[1, 2, 3, 4]], [[1, 2, 3, 4]]) == 1
    assert agreement([[1, 2, 3, 4], [5, 6]], [[1, 9, 3, 4], [5, 6]]) == 0.5


def test_the_number_of_parameters_is_that_of_the_checkpoint(benchmark, tmp_path):
    files = benchmark("checkpoint_files")
    files.write(tmp_path, files.TINY)
    stored = (tmp_path / "model.safetensors").stat().st_size
    assert files.num_params(tmp_path) == stored // 2


def verdict_of(benchmark, *pairs, **found):
    ratio = benchmark("figures").ratios(rounds_of(*pairs), "quire", "peer", "tok_s")
    stage = {"is_quick": False, "engines": []} | found
    return benchmark("tables").verdict(ratio | {"rival": "vllm"}, 3, stage)


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([(4, 1)] * 7, "yes"),
        ([(2, 1), *[(4, 1)] * 6], "by the median"),
        ([(2, 1)] * 6 + [(4, 1)], "no"),
        ([(4, 1)] * 6, "too few pairs"),
    ],
)
def test_an_aim_is_reached_by_the_whole_interval_of_enough_pairs(benchmark, pairs, verdict):
    assert verdict_of(benchmark, *pairs) == verdict


def test_tiny_sizes_have_no_verdict(benchmark):
    assert verdict_of(benchmark, *[(4, 1)] * 7, is_quick=True) == "tiny sizes"
    late = [{"rival": "vllm", "is_open": True}]
    assert verdict_of(benchmark, *[(4, 1)] * 7, is_quick=True, trials=late) == "tiny sizes"


def test_engines_whose_completions_start_differently_have_no_verdict(benchmark):
    engines = [{"label": "peer", "disagrees": True}]
    verdict = verdict_of(benchmark, *[(4, 1)] * 7, engines=engines)
    assert verdict == "none: completions start differently"


def test_no_aim_is_reached_against_a_peer_with_untried_configurations(benchmark):
    late = {"rival": "vllm", "is_open": True}
    verdict = verdict_of(benchmark, *[(4, 1)] * 7, trials=[late])
    assert verdict == "not all of its configurations were tried"
    impossible = {"engine": "vllm", "not_tried": "no libtcmalloc.so is there"}
    assert verdict_of(benchmark, *[(4, 1)] * 7, trials=[impossible]) == "yes"


def test_a_start_that_failed_reaches_no_aim(benchmark):
    aim, done = benchmark("tables").start_aim, {"first_token_s": 2.0}
    assert aim(5, [done] * 3) == "at most 5: all"
    assert aim(5, [done] * 2 + [{"error": "it has ended"}]) == "at most 5: by the median"
    assert aim(5, [done, {"error": "it has ended"}]) == "at most 5: no"


def test_a_start_may_take_a_second_longer_than_openvinos_default(benchmark):
    aims = benchmark("tables").start_aims
    assert aims({}) == {"cached": 5, "cold": 60}
    starts = [{"first_token_s": seconds} for seconds in (3.0, 1.5, 2.0)] + [{"error": "it ended"}]
    assert aims({("openvino", "no flags"): starts})["cached"] == 3.0
    assert aims({("openvino", "compiled model cached"): starts})["cached"] == 5


def test_bytes_of_weights_are_compared_with_the_bandwidth_of_the_same_round(benchmark):
    shares = benchmark("figures").shares
    rounds = [
        {"figures": {"quire": {"decode_tok_s": 10.0}, "memory": {"bytes_per_s": 40e9}}},
        {"figures": {"quire": {"decode_tok_s": 10.0}, "memory": {"bytes_per_s": 20e9}}},
        {"figures": {"quire": {"decode_tok_s": 10.0}}},
    ]
    found = shares(rounds, "quire", "memory", 2_000_000_000)
    assert (found["samples"], found["median"], found["pairs"]) == ([0.5, 1.0], 0.75, 2)
    assert shares(rounds, "peer", "memory", 1) is None


class CountedProcess:
    """An engine that takes a second for each token that it computes."""

    def __init__(self):
        self.runs = []

    def run(self, prompts, output_len, repeats, limit_s):
        self.runs.append((len(prompts), len(prompts[0]), output_len))
        return float(len(prompts) * (len(prompts[0]) + output_len - 1)), []


def test_parts_and_whole_of_a_load_are_of_the_same_runs(benchmark):
    comparisons, process = benchmark("comparisons"), CountedProcess()
    load = comparisons.Comparison("tiny", 2, 16, 5, (), (), comparisons.PARTS)
    assert load.work(process) == {"decode_tok_s": 1, "prefill_tok_s": 1, "out_tok_s": 10 / 40}
    assert process.runs == [(2, 8, 2), (2, 16, 1), (2, 16, 5)]


def test_parts_of_one_request_are_measured_beside_the_whole(benchmark):
    comparisons, process = benchmark("comparisons"), CountedProcess()
    load = comparisons.Comparison("tiny", 2, 16, 5, (), (), comparisons.PARTS, single_input_len=32)
    assert load.work(process)["out_tok_s"] == 10 / 40
    assert process.runs[1:] == [(2, 16, 5), (1, 32, 1), (1, 32, 5)]


def test_of_a_single_output_token_the_prompt_is_measured_alone(benchmark):
    comparisons, process = benchmark("comparisons"), CountedProcess()
    load = comparisons.Comparison("tiny", 1, 32, 1, (), (), ("prefill_tok_s",))
    assert load.work(process) == {"prefill_tok_s": 1}
    assert process.runs == [(1, 8, 2), (1, 32, 1)]
    assert load.quick().output_len == 1


def test_every_peer_runs_without_flags_against_quire_without_flags(benchmark):
    comparisons = benchmark("comparisons")
    bench = comparisons.Bench({}, "native", Path(), 7, is_quick=False, with_trials=True)
    known = comparisons.comparisons(bench)
    found = {
        name: {peer.engine for peer in comparison.peers if peer.name.endswith("no flags")}
        for name, comparison in known.items()
    }
    assert found["qwen3-0.6b"] == found["5m"] == {"vllm", "openvino", "transformers"}
    assert found["single"] == {"llama.cpp", "openvino"}
    assert found["prompt-4096"] == found["prompt-16384"] == {"openvino"}
    assert found["moe-1b-bfloat16"] == {"vllm", "transformers"}
    assert found["moe-1b-float32"] == set()
    plain = benchmark("configurations").QUIRE
    for comparison in known.values():
        for peer in comparison.peers:
            if peer.name.endswith("no flags"):
                assert peer.ours == (plain,)
                assert set(peer.aims.values()) == {1.0}
                assert set(peer.aims) == set(comparison.figures)


def test_configurations_of_openvino_have_names_of_their_own(benchmark):
    configurations = benchmark("configurations")
    for weights in ("fp16", "int8"):
        candidates = configurations.openvino_candidates(weights, 8, 1)
        best, names = candidates.first, []
        for variant in candidates.tried:
            best = variant(best)
            names.append(best.name)
        assert len(set(names)) == len(names)
        assert best.options["properties"]["ATTENTION_BACKEND"] == "SDPA"
        assert "scheduler" not in best.options
        assert candidates.first.options["scheduler"]["cache_size"] == 1


def test_eight_bit_weights_for_vllm_are_the_rounded_ones(benchmark, tmp_path):
    files = benchmark("checkpoint_files")
    files.write(tmp_path / "tiny", files.TINY)
    files.make_vllm(tmp_path / "tiny", sys.executable, ["int8"])
    found = load_file(tmp_path / "tiny" / "vllm-int8" / "model.safetensors")
    assert "model.embed_tokens.weight_scale" not in found
    for name, weight in load_file(tmp_path / "tiny" / "model.safetensors").items():
        if "_proj" not in name:
            assert torch.equal(found[name], weight)
            continue
        codes, scales = found[name], found[f"{name}_scale"]
        assert codes.dtype == torch.int8
        assert int(codes.abs().amax(1).min()) == 127
        assert ((codes * scales - weight.float()).abs() <= 0.501 * scales).all()
    config = json.loads((tmp_path / "tiny" / "vllm-int8" / "config.json").read_text())
    assert config["quantization_config"]["format"] == "int-quantized"


def test_an_engine_that_cannot_be_limited_takes_no_part_with_fewer_instructions(benchmark):
    limits = benchmark("instruction_limits")
    assert limits.cannot_be_limited("openvino", "avx2")
    assert not limits.cannot_be_limited("openvino", "native")
    assert not limits.cannot_be_limited("vllm", "avx2")


def test_a_peer_with_one_configuration_needs_no_trial(tried):
    best, records = tried(("one", 1.0, {}), trial_s=0.0)
    assert (best, records) == ({"one"}, {})


def test_what_was_not_measured_is_a_line_for_each_load(benchmark):
    report = {"native": {"stages": {}, "unfinished": {}}}
    assert "No comparison is measured yet" in benchmark("tables").write_markdown(report)
    ratio = {"rival": "openvino int8", "ours": "quire int8", "theirs": "openvino int8, stateful"}
    ratio |= {"figure": "out_tok_s", "median": 1.5, "interval": [1.3, 1.6], "coverage": 0.984}
    rates = {ratio[who]: {"out_tok_s": {"median": 30.0}} for who in ("ours", "theirs")}
    stage = {
        "load": {"shape": "tiny", "requests": 8, "input_len": 128, "output_len": 64},
        **{"is_quick": False, "engines": [], "rates": rates, "ratios": [ratio | {"pairs": 7}]},
    }
    text = benchmark("tables")._ratios({"qwen3-0.6b-int8": stage})
    assert "| int8 | openvino int8, stateful | output | 30.0 | 30.0 | 1.50 (1.30 to 1.60" in text
    assert "| 7 | 1.25 | yes |" in text
    assert "* single: llama.cpp BF16, openvino fp16, llama.cpp no flags, openvino no flags" in text
    assert "* qwen3-0.6b-int8: vllm int8" in text


def test_rates_of_other_kernels_count_for_no_aim_of_ours(benchmark):
    tables = benchmark("rate_tables")
    linear = [
        {"way": way, "rows": rows, "share_of_bandwidth": of_memory, "share_of_peak": of_peak}
        | {"peak": peak}
        for way, rows, of_memory, of_peak, peak in (
            ("bf16", 1, 0.8, 0.1, "FMA"),
            ("bf16", 4, 0.6, 0.4, "FMA"),
            ("bf16", 16, 0.2, 0.7, "FMA"),
            ("bf16_dot", 16, 0.2, 0.7, "pairs"),
            ("int8", 16, 0.2, 0.8, "bytes"),
            ("F.linear bf16", 1, 1, 1, "pairs"),
        )
    ]
    text = tables.linear_aims(linear)
    assert "read bandwidth: 1 of 2 reach the aim of 75%; minimum 60%, median 70%" in text
    assert "FMA peak: 1 of 1 reach the aim of 70%" in text
    assert "of pairs of bfloat16: 0 of 1 reach the aim of 75%" in text
    assert "of products of bytes: 1 of 1 reach the aim of 75%" in text
    attention = [
        {"backend": "cpu", "new": 1, "of_limit": 0.5},
        {"backend": "torch_sdpa", "new": 1, "of_limit": 0.9},
    ]
    assert "decode, of the read bandwidth: 0 of 1" in tables.attention_aims(attention)


def test_results_of_a_stage_grow_unless_they_replace(benchmark):
    stages, found = benchmark("stages"), {}
    replaced = benchmark("rounds").Replaced
    for piece in (
        {"rounds": [1], "rates": {"a": 1}, "ratios": replaced([1])},
        {"rounds": [2], "rates": {"b": 2}, "ratios": replaced([2])},
    ):
        stages.merge(found, piece)
    assert found == {"rounds": [1, 2], "rates": {"a": 1, "b": 2}, "ratios": [2]}


def test_folders_of_the_machine_are_not_in_the_report(benchmark):
    process = benchmark("engine_process")
    without_paths = process.without_paths
    assert without_paths("no /srv/models/x.gguf here, 3/4") == "no PATH/x.gguf here, 3/4"
    options = {"properties": {"CACHE_DIR": "/srv/kept/model"}, "flags": ["/srv/x/y", 3, True]}
    shown = process.Configuration("openvino", "", options, environment={"HOME": "/srv/x/z"})
    assert shown.as_dict() == {
        "engine": "openvino",
        "name": "",
        "options": {"properties": {"CACHE_DIR": "PATH/model"}, "flags": ["PATH/y", 3, True]},
        "environment": {"HOME": "PATH/z"},
    }


def test_an_engine_is_stopped_while_others_run_and_reports_its_errors(benchmark, tmp_path):
    processes, comparisons = benchmark("engine_process"), benchmark("comparisons")
    files = benchmark("checkpoint_files")
    files.write(tmp_path, files.TINY)
    configuration = processes.Configuration("quire", "tiny", {"kernels": "torch", "threads": 1})
    prompts = [[5, 6, 7], [8, 9]]
    with processes.EngineProcess(configuration, sys.executable, "native") as process:
        with pytest.raises(processes.EngineFailedError, match="no model was loaded"):
            process.run(prompts, 2, 1, comparisons.RUN_S)
        loaded = process.load(tmp_path, comparisons.LOAD_S)
        assert loaded["parts"]["kernels"] == "torch"
        _, first = process.run(prompts, 6, 1, comparisons.RUN_S)
        assert [len(each) for each in first] == [6, 6]
        process.pause()
        with pytest.raises(processes.EngineFailedError, match="did not reply within 1 s"):
            process.run(prompts, 6, 1, 1.0)
        process.resume()
    assert not process.lives


STARTS_AND_DIES = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from engine_process import Configuration, EngineProcess
process = EngineProcess(Configuration("quire", ""), sys.executable, "native")
process.pause()
print(process._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stopped_engine_ends_with_its_parent(benchmark):
    done = subprocess.run(
        [sys.executable, "-c", STARTS_AND_DIES, FOLDER], capture_output=True, text=True, check=False
    )
    group = benchmark("engine_process")._group
    end = time.monotonic() + 30
    while group(int(done.stdout)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not group(int(done.stdout))


SCRIPTED = """
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    if message["do"] == "load":
        options, answer = message["options"], {"instruction_set": "AVX2"}
    else:
        options["runs"] = options.get("runs", 99) - 1
        if options["runs"] < 0:
            sys.exit("worn out")
        answers = [[options.get("first", 1)] * message["output_len"] for _ in message["prompts"]]
        answer = {"seconds": options["seconds"], "token_ids": answers}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def tried(benchmark, tmp_path):
    """Trials of ways that a script carries out, each `name, seconds of a run, more of it`."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{SCRIPTED}")
    python.chmod(0o755)
    comparisons, processes, configurations = map(
        benchmark, ("comparisons", "engine_process", "configurations")
    )
    bench = comparisons.Bench(
        {"transformers": str(python)}, "avx2", tmp_path, 7, is_quick=False, with_trials=True
    )
    comparison = comparisons.Comparison("tiny", 8, 16, 12, (), (), ("out_tok_s",))

    def run(*each, trial_s=60.0):
        made = [
            processes.Configuration(
                "transformers",
                name,
                {"seconds": seconds, **more},
                keeps_weights=not more.get("is_narrow", False),
            )
            for name, seconds, more in each
        ]
        variants = tuple(
            lambda _best, configuration=configuration: configuration for configuration in made
        )
        peer = comparisons.Peer(
            "transformers", "its name", configurations.Candidates(variants, {}), (), trial_s
        )
        trials = benchmark("trials").Trials(peer, comparison, bench, tmp_path)
        for _ in trials.run():
            pass
        best = {configuration.name for configuration in trials.best.values()}
        return best, {record["name"]: record for record in trials.records}

    return run


def test_the_fastest_configuration_of_a_peer_is_found(tried):
    best, records = tried(("one", 2.0, {}), ("other", 1.0, {}), ("hopeless", 9.0, {}))
    assert best == {"other"}
    assert [len(records[name]["samples"]) for name in ("one", "other", "hopeless")] == [3, 2, 1]
    assert {record["rival"] for record in records.values()} == {"its name"}


def test_a_configuration_whose_completions_are_another_models_is_rejected(tried):
    best, records = tried(("one", 2.0, {}), ("wrong", 0.1, {"first": 7}))
    assert best == {"one"}
    assert "start differently" in records["wrong"]["error"]


def test_narrow_weights_may_start_differently_with_inputs_rounded_otherwise(tried):
    best, _ = tried(("one", 2.0, {}), ("narrow", 0.1, {"first": 7, "is_narrow": True}))
    assert best == {"narrow"}


def test_a_configuration_that_fails_while_another_is_tried_stays_open(tried):
    best, records = tried(("mortal", 1.0, {"runs": 5}), ("slower", 1.2, {}))
    assert best == {"slower"}
    assert records["mortal"]["is_open"]
    assert "it has ended" in records["mortal"]["error"]


def test_configurations_for_which_there_was_no_time_stay_open(tried):
    best, records = tried(("one", 1.0, {}), ("other", 1.0, {}), trial_s=0.0)
    assert best == set()
    assert records["one"]["is_open"]


def test_variables_that_change_an_engine_are_kept_from_it(benchmark, monkeypatch):
    processes = benchmark("engine_process")
    for name in ("OMP_NUM_THREADS", "QUIRE_THREADS", "LD_PRELOAD", "MKL_NUM_THREADS", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    found = processes.environment(processes.Configuration("quire", ""), "native")
    assert not {"OMP_NUM_THREADS", "QUIRE_THREADS", "LD_PRELOAD", "PYTHONPATH"} & set(found)
    assert found["PATH"] == os.environ["PATH"]
    assert processes.dropped_variables()["MKL_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("uses_avx512", "isa", "flags", "is_wrong"),
    [
        (True, "avx2", {"avx512f"}, True),
        (False, "avx2", {"avx512f"}, False),
        (False, "native", {"avx512f"}, True),
        (True, "native", {"avx512f"}, False),
        (False, "native", {"avx2"}, False),
    ],
)
def test_a_build_for_other_instructions_is_refused(benchmark, uses_avx512, isa, flags, is_wrong):
    limits = benchmark("instruction_limits")
    assert (limits.wrong_build(uses_avx512, isa, flags) is not None) == is_wrong


def test_an_engine_reports_its_instruction_set(benchmark):
    uses = benchmark("instruction_limits").uses_avx512
    assert uses("llama.cpp", {"instruction_set": "AVX2 = 1 | AVX512 = 1 | "}, [])
    assert not uses("llama.cpp", {"instruction_set": "AVX2 = 1 | "}, [])
    assert uses("quire", {"instruction_set": "avx512"}, [])
    assert not uses("transformers", {"instruction_set": "AVX2"}, [])
    assert uses("vllm", {}, ["_C_AVX512.abi3.so"])
    assert not uses("vllm", {}, ["_C_AVX2.abi3.so"])


def test_every_eight_requests_have_the_same_lengths(benchmark):
    served = benchmark("served_requests")
    wanted = list(islice(served.lengths(), 24))
    assert sorted(wanted[:8]) == sorted(wanted[8:16]) == sorted(wanted[16:])
    assert wanted[:8] != wanted[8:16]


def test_a_wait_that_the_end_cuts_off_counts(benchmark):
    served = benchmark("served_requests")
    requests = [
        served.SentRequest(0.0, 3, times=[1.0, 2.0, 3.0], tokens=[1, 1, 1]),
        served.SentRequest(1.5, 2, times=[4.0, 12.0], tokens=[1, 1]),
        served.SentRequest(3.5, 2),
        served.SentRequest(10.5, 2, times=[10.6], tokens=[1]),
    ]
    found = served._waits(requests, 2.5, 10.0)
    assert found["first_token_s"] == {"least": 2.5, "median": 4.5, "most": 6.5}
    assert found["longest_wait_s"] == 6.5
    assert found["requests"] == 2
    assert served._tokens_between(requests, 2.5, 10.0) == 2


def test_a_checkpoint_whose_writing_fails_is_not_there(benchmark, tmp_path):
    files = benchmark("checkpoint_files")
    with pytest.raises(benchmark("engine_process").EngineFailedError, match="KeyError"):
        files.make_checkpoint(tmp_path, "no-shape")
    assert not (tmp_path / "no-shape").exists()


def test_a_peer_that_goes_by_torch_sees_no_avx512_where_it_is_limited(benchmark):
    processes = benchmark("engine_process")
    variables = processes.environment(processes.Configuration("vllm", ""), "avx2")
    code = "import torch; print(any(v for k, v in torch.cpu.get_capabilities().items() "
    code += "if k.startswith('avx512')), torch.backends.cpu.get_cpu_capability())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == "False"
    assert "AVX512" not in done.stdout


def test_the_committed_report_is_that_of_the_committed_figures(benchmark):
    figures = RESULTS / "cpu.json"
    report = json.loads(figures.read_text(encoding="utf-8")) if figures.exists() else {}
    committed = (RESULTS / "cpu.md").read_text(encoding="utf-8")
    assert committed == benchmark("tables").write_markdown(report)
    assert all((RESULTS / name).exists() for name in re.findall(r"\]\((cpu_\w+\.svg)\)", committed))
    assert figures.exists() or not re.search(r"\d %", committed), "figures without cpu.json"


def test_an_unknown_stage_is_refused_with_the_known_ones():
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", "--stages", "speed"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "single" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pairs", "0"], "--pairs must be at least 1"),
        (["--vllm", "/no/such/python"], "--vllm: /no/such/python does not run"),
        (["--llama-cpp", sys.executable], "has no module llama_cpp"),
        (["--transformers", "/bin/false"], "is no Python"),
        (["--quick", "--write"], "--quick finds nothing for --write to keep"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(words, message):
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_quick_run_takes_every_figure(tmp_path):
    started = time.monotonic()
    peers = ["--transformers", sys.executable]
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", "--quick", "--out", tmp_path, *peers],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    part = json.loads((tmp_path / "cpu.json").read_text(encoding="utf-8"))["native"]
    stages = part["stages"]
    assert part["unfinished"] == {}
    assert list(stages) == [
        *("machine", "qwen3-0.6b", "qwen3-0.6b-int8", "single", "single-int8", "5m"),
        *("prompt-4096", "prompt-16384", "start", "load"),
    ]
    failed = [what for stage in stages.values() for what in stage.get("failed", ())]
    assert not failed
    assert len(stages["machine"]["rates"]) == 5
    assert stages["5m"]["absent"] == ["openvino", "vllm"]
    assert set(stages["single"]["memory"]["shares"]) == {"quire", "quire all bf16", "quire again"}
    assert len(stages["5m"]["rounds"]) == 2
    compared = [(each["ours"], each["rival"]) for each in stages["5m"]["ratios"]]
    assert compared == [
        *(("quire", "transformers"), ("quire all bf16", "transformers")),
        ("quire", "transformers no flags"),
    ]
    quires = {each["label"]: each for each in stages["5m"]["engines"] if "quire" in each["label"]}
    options = quires.pop("quire all bf16")["configuration"]["options"]
    assert "bfloat16" in (options.get("dtype"), options.get("kv_cache_dtype"))
    assert quires["quire"]["equal_tokens"] == quires["quire again"]["equal_tokens"] == 1.0
    assert quires["quire float32"]["first_tokens"] == 1.0
    assert [each["kind"] for each in stages["start"]["starts"]].count("cached") == 7
    assert all("first_token_s" in each for each in stages["start"]["starts"])
    assert [each["clients"] for each in stages["load"]["clients"]] == [1, 2]
    assert sum(each["seconds"] for each in stages.values()) < time.monotonic() - started
    assert "are meaningless" in (tmp_path / "cpu.md").read_text(encoding="utf-8")
    assert (tmp_path / "cpu_native.svg").exists()
