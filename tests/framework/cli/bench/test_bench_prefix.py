import json

import pytest

from quire.cli.bench.bench_prefix import Load, _with_cache
from quire.cli.main import main
from quire.config import Settings

SMALL = ["--num-prompts", "2", "--prompt-len", "64", "--output-len", "2", "--pairs", "2"]


def bench(capsys, *argv):
    assert main(["bench", "prefix", *SMALL, *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def figures(capsys):
    return bench(capsys, "--shape", "5m", "--block-size", "16", "--hit-rates", "0", "0.5", "0.9")


def test_the_hit_rate_is_what_the_engine_found(figures):
    rates = [(rate["hit_rate_asked"], rate["hit_rate"]) for rate in figures["hit_rates"]]
    assert rates == [(0.0, 0.0), (0.5, 0.5), (0.9, 0.75)], "whole blocks, before the last token"


def test_each_pair_is_kept_and_the_median_is_one_of_them_or_between(figures):
    for rate in figures["hit_rates"]:
        for name in ("throughput", "first_token"):
            ratios = rate[f"{name}_ratios"]
            assert len(ratios) == 2
            assert min(ratios) <= rate[f"{name}_ratio"] <= max(ratios)
            low, high = rate[f"{name}_ratio_95_interval"]
            assert min(ratios) <= low <= high <= max(ratios)


def test_a_model_can_be_named(capsys):
    figures = bench(capsys, "demo", "--hit-rates", "0.5")
    assert figures["model"] == "demo"
    assert figures["hit_rates"][0]["hit_rate"] == 0.5


def test_one_of_the_two_engines_has_no_cache():
    load = Load(num_prompts=2, prompt_len=64, output_len=2, pairs=2)
    both = [_with_cache(Settings(), load, is_on) for is_on in (True, False)]
    assert [settings.cache.enable_prefix_caching for settings in both] == [True, False]


@pytest.mark.parametrize("text", ["1", "-0.1", "much"])
def test_a_hit_rate_is_a_fraction_below_one(text, capsys):
    assert main(["bench", "prefix", "--hit-rates", text]) == 2
    assert "--hit-rates" in capsys.readouterr().err
