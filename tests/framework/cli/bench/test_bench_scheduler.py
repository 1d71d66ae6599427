import json

import pytest

from quire.cli.bench.bench_scheduler import measure_prompt, measure_workload
from quire.cli.bench.null_engine import EngineParts, Workload
from quire.cli.main import main
from quire.errors import CapacityError

PARTS = EngineParts.load()
SMALL = ["--running", "1", "2", "--contexts", "64", "--pool-sizes", "1e3", "--prompt-blocks", "4"]


def test_the_whole_sweep_is_printed_as_json(capsys):
    assert main(["bench", "scheduler", *SMALL, "--rounds", "3", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    workloads = [(s["num_running"], s["context"], s["async_scheduling"]) for s in figures["steps"]]
    alone = [(1, 1024, False), (2, 1024, False), (1, 1024, True), (2, 1024, True)]
    assert workloads == [*alone, (32, 64, False), (16, 128, False)]
    assert figures["steps"][-1]["num_blocks"] == 1000
    assert figures["prompts"][0]["num_blocks"] == 4
    assert figures["machine"]["quire"]


def test_the_workers_time_is_shown_and_subtracted():
    step = measure_workload(PARTS, Workload(8, 64), rounds=5)
    executor_us = step["executor_us"]["median"]
    assert 0 < executor_us < step["step_us"]["median"]
    assert step["net_us"]["median"] == pytest.approx(step["step_us"]["median"] - executor_us)
    assert step["us_a_request"]["median"] == pytest.approx(step["step_us"]["median"] / 8)
    assert step["net_us_a_request"]["median"] == pytest.approx(step["net_us"]["median"] / 8)


def test_each_operation_on_a_prompts_blocks_has_a_figure():
    figures = measure_prompt(PARTS, 64, rounds=5)
    operations = ("name", "hit", "miss", "adopt", "free")
    assert all(figures[f"{operation}_us"]["median"] > 0 for operation in operations)
    assert figures["miss_us"]["median"] < figures["hit_us"]["median"]


def test_a_pool_that_is_too_small_for_the_rounds_is_refused():
    with pytest.raises(CapacityError):
        measure_workload(PARTS, Workload(16, 128, num_blocks=1000), rounds=100)


@pytest.mark.parametrize("text", ["0", "1.5", "many"])
def test_a_size_is_a_whole_number(text, capsys):
    assert main(["bench", "scheduler", "--pool-sizes", text]) == 2
    assert "--pool-sizes" in capsys.readouterr().err
