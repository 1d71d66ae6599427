"""The executor places ranks through Ray's driver, and says what Ray knows of their ends."""

import select
import threading
import time

import pytest
from processes import eventually
from scripted_driver import NODES, ScriptedDriver, WaitingPoint

from quire.errors import CapacityError, EngineDeadError, RefusedError
from quire.interfaces.executor import WorkerGrid, WorkerLaunch
from quire_executors.ray import ray_executor
from quire_executors.ray.ray_executor import DRIVER, RayExecutor
from quire_executors.ray.ray_wire import (
    AgentEnded,
    Refused,
    Release,
    Reserve,
    Reserved,
    StartAgents,
)

GRID = WorkerGrid(tp_size=2)


@pytest.fixture(autouse=True)
def _ray_is_installed(monkeypatch):
    monkeypatch.setattr(ray_executor, "find_spec", lambda name: name)


@pytest.fixture
def drivers():
    made = []
    yield made
    for driver in made:
        driver.close()


@pytest.fixture
def points():
    made = []
    yield made
    for point in made:
        for process in point.processes:
            process.end(0.0)


def place(driver, point, drivers, points, **options):
    drivers.append(driver)
    points.append(point)
    hosts, modules = [], []

    def listen(host):
        hosts.append(host)
        return point

    def start_helper(module):
        modules.append(module)
        return driver

    launch = WorkerLaunch(
        grid=GRID, make=None, spawn=None, listen=listen, start_helper=start_helper, **options
    )
    placed = RayExecutor().place(launch)
    assert (hosts, modules) == (["10.0.0.1"], [DRIVER])
    return placed


def is_readable(process, timeout_s=5.0):
    poller = select.poll()
    poller.register(process.fileno(), select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def end_all(placed):
    return [process.end(0.0) for process in placed]


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(ray_executor, "find_spec", lambda name: None)
    with pytest.raises(RefusedError, match=r"pip install 'quire\[ray\]'"):
        RayExecutor().place(None)


def test_devices_are_reserved_before_the_port_opens_and_agents_start_after(drivers, points):
    driver = ScriptedDriver()
    placed = place(driver, WaitingPoint(2), drivers, points, needs_gpus=True, num_threads=3)
    end_all(placed)
    assert driver.received == [
        Reserve(num_ranks=2, tp_size=2, needs_gpus=True, num_threads=3),
        StartAgents(WaitingPoint.address, WaitingPoint.key),
        Release(),
    ]
    assert not driver.was_killed


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (Refused(True, "needs 16 GPUs, 8 are free: nodeA 8 of 8"), CapacityError, "nodeA 8 of 8"),
        (Refused(False, "no head at 10.0.0.9"), RefusedError, "cannot use Ray: no head at"),
        (AgentEnded(0, "x"), EngineDeadError, "sent AgentEnded.* unexpectedly"),
    ],
)
def test_a_refusal_of_the_driver_is_raised_and_ends_it(answer, kind, text, drivers, points):
    driver = ScriptedDriver(answer)
    with pytest.raises(kind, match=text):
        place(driver, WaitingPoint(0), drivers, points)
    assert driver.received[-1] == Release()


def test_a_driver_that_does_not_answer_is_ended(drivers, points):
    driver = ScriptedDriver()
    driver._answers.clear()
    late = threading.Timer(5.0, driver.say, [Reserved("10.0.0.1", NODES, driver.head)])
    late.start()
    with pytest.raises(EngineDeadError, match=r"Ray did not answer within 0\.1 s .*`ray status`"):
        place(driver, WaitingPoint(0), drivers, points, start_timeout_s=0.1)
    late.cancel()
    assert driver.received[-1] == Release()


def test_an_agent_that_ends_before_it_has_joined_is_named_with_its_node(drivers, points):
    driver = ScriptedDriver()

    def wait_for(check):
        check()
        driver.say(AgentEnded(1, "its `quire worker` exited with 2"))
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            check()

    with pytest.raises(EngineDeadError) as caught:
        place(driver, WaitingPoint(0, wait_for), drivers, points)
    assert str(caught.value).startswith(
        f"rank 1 on {NODES[1]} did not join: its `quire worker` exited with 2; "
    )
    assert driver.received[-1] == Release()


def test_a_driver_that_dies_before_all_have_joined_is_an_error(drivers, points):
    driver = ScriptedDriver()

    def wait_for(check):
        driver.die()
        check()

    with pytest.raises(EngineDeadError, match="Ray's driver was killed by SIGKILL"):
        place(driver, WaitingPoint(0, wait_for), drivers, points)


def test_the_end_of_an_actor_ends_its_rank_and_no_other(drivers, points):
    driver = ScriptedDriver()
    placed = place(driver, WaitingPoint(2), drivers, points)
    driver.say(AgentEnded(1, "its Ray actor died: out of memory"))
    assert is_readable(placed[1])
    assert not is_readable(placed[0], 0.2)
    first, second = end_all(placed)
    assert first == "ended with exit code -9"
    assert second == "ended with exit code -9; its Ray actor died: out of memory"


def test_the_end_of_the_driver_ends_all_ranks(drivers, points):
    driver = ScriptedDriver()
    placed = place(driver, WaitingPoint(2), drivers, points)
    driver.die()
    assert all(map(is_readable, placed))
    assert all("Ray's driver was killed by SIGKILL" in how for how in end_all(placed))


def lost_heads(caplog):
    return [record.getMessage() for record in caplog.records if "head" in record.message]


@pytest.mark.parametrize("num_actors", [0, 1, 2])
def test_without_rays_head_the_ends_of_actors_and_of_the_driver_end_no_rank(
    num_actors, drivers, points, caplog
):
    driver = ScriptedDriver()
    placed = place(driver, WaitingPoint(2), drivers, points)
    driver.lose_head()
    for rank in range(num_actors):
        driver.say(AgentEnded(rank, "its Ray actor died"))
    driver.die()
    eventually(lambda: lost_heads(caplog))
    assert not any(is_readable(process, 0.2) for process in placed)
    (said,) = lost_heads(caplog)
    assert driver.head in said
    assert "no longer guards these devices" in said
    assert "drain this engine" in said
    assert end_all(placed) == ["ended with exit code -9"] * 2


def test_an_engine_that_ends_does_not_ask_for_rays_head(drivers, points, caplog):
    driver = ScriptedDriver()
    placed = place(driver, WaitingPoint(2), drivers, points)
    driver.lose_head()
    end_all(placed)
    assert not lost_heads(caplog)


def test_the_driver_is_released_with_the_last_rank(drivers, points):
    driver = ScriptedDriver()
    placed = place(driver, WaitingPoint(2), drivers, points)
    described = placed[0].end(0.0)
    assert Release() not in driver.received
    assert placed[0].end(0.0) == described
    assert placed[0].fileno() is None
    placed[1].end(0.0)
    assert driver.received[-1] == Release()


def test_a_rank_that_hangs_is_described_by_its_agent(drivers, points):
    point = WaitingPoint(2)
    placed = place(ScriptedDriver(), point, drivers, points)
    assert [each.pid for each in placed] == [each.process.pid for each in point.processes]
    assert placed[1].state(7) == "it writes its stack to 7"
    end_all(placed)


def test_a_rank_knows_its_machine_and_can_be_killed(drivers, points):
    driver, point = ScriptedDriver(), WaitingPoint(2)
    placed = place(driver, point, drivers, points)
    assert placed[0].node == point.processes[0].node
    placed[0].kill()
    assert point.processes[0].process.wait(5.0) == -9
    end_all(placed)
