import json

import pytest

from quire.cli.bench.bench_scheduler import measure_prompt, measure_scene
from quire.cli.bench.null_engine import EngineParts, Scene
from quire.cli.main import main
from quire.errors import CapacityError

PARTS = EngineParts.load()
SMALL = ["--running", "1", "2", "--contexts", "64", "--pool-sizes", "1e3", "--prompt-blocks", "4"]


def test_the_whole_sweep_is_printed_as_json(capsys):
    assert main(["bench", "scheduler", *SMALL, "--rounds", "3", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    scenes = [(s["num_running"], s["context"], s["async_scheduling"]) for s in figures["steps"]]
    alone = [(1, 1024, False), (2, 1024, False), (1, 1024, True), (2, 1024, True)]
    assert scenes == [*alone, (32, 64, False), (16, 128, False)]
    assert figures["steps"][-1]["num_blocks"] == 1000
    assert figures["prompts"][0]["num_blocks"] == 4
    assert figures["machine"]["quire"]


def test_the_sweep_is_two_tables_for_people(capsys):
    assert main(["bench", "scheduler", *SMALL, "--rounds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "a request" in shown
    assert "ahead" in shown
    assert "full pool" in shown
    assert "find all" in shown


def test_the_workers_share_is_told_and_taken_away():
    step = measure_scene(PARTS, Scene(8, 64), rounds=5)
    share = step["executor_us"]["median"]
    assert 0 < share < step["step_us"]["median"]
    assert step["net_us"]["median"] == pytest.approx(step["step_us"]["median"] - share)
    assert step["us_a_request"]["median"] == pytest.approx(step["step_us"]["median"] / 8)
    assert step["net_us_a_request"]["median"] == pytest.approx(step["net_us"]["median"] / 8)


def test_each_verb_of_a_prompt_s_blocks_has_a_figure():
    figures = measure_prompt(PARTS, 64, rounds=5)
    verbs = ("name", "hit", "miss", "adopt", "free")
    assert all(figures[f"{verb}_us"]["median"] > 0 for verb in verbs)
    assert figures["miss_us"]["median"] < figures["hit_us"]["median"]


def test_a_pool_that_is_too_small_for_the_rounds_is_refused():
    with pytest.raises(CapacityError):
        measure_scene(PARTS, Scene(16, 128, num_blocks=1000), rounds=100)


@pytest.mark.parametrize("text", ["0", "1.5", "many"])
def test_a_size_is_a_whole_number(text, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "scheduler", "--pool-sizes", text])
    assert caught.value.code == 2
    assert "argument --pool-sizes" in capsys.readouterr().err
