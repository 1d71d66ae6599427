"""The engine's port for ranks on other machines: what it checks before anything is started."""

import threading

import msgspec
import pytest
from left_keys import key_left_in
from processes import eventually
from scripted_agents import ScriptedAgent, joined

from quire.config import ParallelSettings, ServerSettings, Settings
from quire.errors import CapacityError, EngineDeadError, SettingsError
from quire.interfaces.executor import WorkerGrid
from quire.launch.workers.nodes.agent_wire import AgentFailed, AgentJoined, Probe, StartRanks
from quire.launch.workers.nodes.join_point import TcpJoinPoint, check_devices, rank_places
from quire.launch.workers.nodes.reachability import ProbeTarget
from quire.process.error_message import ErrorMessage
from quire.process.launch_key import LaunchKey


def settings(timeout_s=10.0, **parallel):
    given = {"worker_address": "127.0.0.1", "worker_start_timeout_s": timeout_s} | parallel
    return Settings(
        parallel=ParallelSettings(executor="joined", **given),
        server=ServerSettings(api_key=(SECRET,)),
    )


SECRET = "a-secret"
ONE, TWO = WorkerGrid(1), WorkerGrid(2)


class Scene:
    """A port, and agents that join it."""

    def __init__(self, grid=TWO, *, needs_gpus=False, **given):
        self.point = TcpJoinPoint(settings(**given), grid, None, needs_gpus=needs_gpus)
        self.agents = []

    def join(self, *args, probed=None, **changes):
        what = joined(*args, **changes)
        agent = ScriptedAgent(self.point.address, self.point.key, what, probed=probed)
        self.agents.append(agent)
        return agent

    def wait(self, check=lambda: None):
        return self.point.wait(check)

    def close(self):
        for agent in self.agents:
            agent.stop()
        self.point.close()


@pytest.fixture
def scene():
    made = []

    def make(*args, **given):
        made.append(Scene(*args, **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_every_rank_is_started_by_its_agent(scene):
    here = scene(WorkerGrid(2, 2))
    later = here.join(1, 3, node="machine-b", node_id="b")
    first = here.join(0)
    processes = here.wait()
    assert [process.node for process in processes] == ["machine-a"] + 3 * ["machine-b"]
    assert [process.fileno() for process in processes] == [None] * 4
    for agent in (first, later):
        eventually(lambda agent=agent: len(agent.received) == 2)
        assert isinstance(agent.received[0], Probe)
        assert isinstance(agent.received[1], StartRanks)


def test_the_settings_reach_the_agents_without_the_servers(scene):
    here = scene(WorkerGrid(1))
    agent = here.join(0)
    here.wait()
    eventually(lambda: agent.received)
    sent = agent.received[-1].settings
    assert sent.parallel == here.point._settings.parallel
    assert sent.server == ServerSettings()


def test_a_rank_that_nobody_brings_is_named_at_the_time_limit(scene):
    here = scene(WorkerGrid(4), timeout_s=1.0)
    here.join(1)
    with pytest.raises(EngineDeadError, match=r"ranks 0, 2, 3 of 4 did not join at .*rank 1 on"):
        here.wait()
    here.agents[0].ends()
    assert isinstance(here.agents[0].error, EngineDeadError)


def test_the_executor_may_end_the_wait(scene):
    here = scene()
    calls = []

    def check():
        calls.append(1)
        if len(calls) > 2:
            raise CapacityError("no machine is left")

    with pytest.raises(CapacityError, match="no machine is left"):
        here.wait(check)


def test_an_agent_that_brings_a_rank_twice_is_refused_and_the_first_one_stays(scene):
    here = scene()
    first = here.join(0)
    waiting = threading.Thread(target=here.wait)
    waiting.start()
    eventually(lambda: here.point.agents.joined)
    second = here.join(0, pid=7)
    second.ends()
    assert isinstance(second.error, SettingsError)
    assert "rank 0 has joined already: rank 0 on machine-a" in str(second.error)
    assert "ranks missing: 1" in str(second.error)
    here.join(1)
    waiting.join(10)
    eventually(lambda: first.received)
    assert first.error is None


def test_an_agent_may_leave_before_the_start_and_come_again(scene):
    here = scene()
    first = here.join(0)
    waiting = threading.Thread(target=here.wait)
    waiting.start()
    eventually(lambda: here.point.agents.joined)
    first.stop()
    eventually(lambda: not here.point.agents.joined)
    here.join(0, pid=8)
    here.join(1)
    waiting.join(10)
    assert [agent.pid for agent in here.point.agents.joined] == [8, 101]


def test_an_agent_that_left_and_did_not_come_again_is_named_at_the_time_limit(scene):
    here = scene(timeout_s=3.0)
    errors = []

    def wait():
        try:
            here.wait()
        except EngineDeadError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    for rank in range(2):
        leaving = here.join(rank)
        eventually(lambda: here.point.agents.joined)
        leaving.stop()
        eventually(lambda: not here.point.agents.joined)
    here.join(0, pid=8)
    waiting.join(10)
    assert "joined: rank 0 on machine-a (127.0.0.1, agent process 8)" in errors[0]
    assert "left again: rank 1 on machine-a (127.0.0.1, agent process 101)" in errors[0]


def test_a_rank_outside_the_grid_is_refused_with_those_that_are_in_it(scene):
    here = scene(WorkerGrid(1))
    outside = here.join(0, 2)
    waiting = threading.Thread(target=here.wait)
    waiting.start()
    outside.ends()
    here.join(0)
    waiting.join(10)
    assert "rank 1 is not among the 1 ranks" in str(outside.error)


def test_other_versions_are_all_named_and_end_the_start_on_all_machines(scene):
    here = scene(WorkerGrid(3))
    agents = [here.join(0, version="0.0.1"), here.join(1), here.join(2, version="9.9")]
    with pytest.raises(SettingsError, match=r"rank 0 on .* has quire 0\.0\.1; rank 2 .* 9\.9, and"):
        here.wait()
    for agent in agents:
        agent.ends()
        assert "install the same version" in str(agent.error)


def test_an_agent_of_another_version_is_understood_though_it_says_less_or_more():
    said = msgspec.to_builtins(joined(3, version="7", node="machine-z"))
    for fields in (said[:3], [*said, "something new"]):
        found = msgspec.convert(fields, AgentJoined)
        assert (found.version, found.node) == ("7", "machine-z")


def test_an_agent_that_comes_while_machines_try_to_reach_each_other_is_refused(scene):
    here = scene()
    late = []

    def probed_late(channel):
        late.append(here.join(0, pid=9))
        late[0].ends()
        return [None, None]

    here.join(0)
    here.join(1, node="machine-b", node_id="b", probed=probed_late)
    assert len(here.wait()) == 2
    assert "all ranks have joined already" in str(late[0].error)


def test_an_agent_that_leaves_while_machines_try_to_reach_each_other_is_named(scene):
    here = scene()

    def leaves(channel):
        channel.send(AgentFailed(ErrorMessage.of(EngineDeadError("it was interrupted"))))

    here.join(0)
    here.join(1, node="machine-b", node_id="b", probed=leaves)
    with pytest.raises(EngineDeadError, match=r"rank 1 on machine-b .* it was interrupted"):
        here.wait()


def test_an_agent_that_joins_again_meanwhile_is_an_error_without_its_token(scene):
    here = scene()
    target = ProbeTarget("127.0.0.1", 1, b"sixteen secret b")

    def joins_again(channel):
        channel.send(joined(1, target=target))

    here.join(0)
    here.join(1, node="machine-b", node_id="b", probed=joins_again)
    with pytest.raises(EngineDeadError, match=r"rank 1 on machine-b .* sent AgentJoined") as error:
        here.wait()
    assert "secret" not in str(error.value)


def test_an_agent_that_left_just_before_the_start_is_named(scene, monkeypatch):
    here = scene()
    first, second = here.join(0), here.join(1)

    def stop(agents):
        second.stop()
        eventually(lambda: not here.point.hub._reaches(here.point.agents.peers[1]))

    monkeypatch.setattr("quire.launch.workers.nodes.join_point.check_versions", stop)
    with pytest.raises(EngineDeadError, match=r"rank 1 on machine-a .* left before its ranks"):
        here.wait()
    first.ends()
    assert "left before its ranks were started" in str(first.error)


def test_a_machine_with_too_few_gpus_is_named_before_anything_is_started(scene):
    here = scene(needs_gpus=True)
    agent = here.join(0, 2, devices=["0"])
    with pytest.raises(CapacityError, match="no GPU for rank 1 on machine-a, where 1 are visible"):
        here.wait()
    agent.ends()
    assert isinstance(agent.error, CapacityError)
    assert not [message for message in agent.received if isinstance(message, StartRanks)]


def test_machines_that_do_not_reach_each_other_are_named_before_anything_is_started(scene):
    here = scene()
    agents = [
        here.join(0),
        here.join(1, node="machine-b", node_id="b", probed=["refused", None]),
    ]
    with pytest.raises(SettingsError, match=r"rank 0 on machine-a .* from rank 1 on machine-b"):
        here.wait()
    for agent in agents:
        agent.ends()
        assert isinstance(agent.error, SettingsError)


def test_agents_of_one_machine_do_not_try_to_reach_each_other(scene):
    here = scene()
    agents = [here.join(0, probed=["refused", "refused"]), here.join(1)]
    here.wait()
    for agent in agents:
        eventually(lambda agent=agent: agent.received)
        assert isinstance(agent.received[0], StartRanks)


def test_ranks_of_a_machine_divide_the_gpus_that_they_all_see():
    agents = [joined(0, 2, devices=["0", "1", "2"]), joined(2, devices=["0", "1", "2"])]
    assert [place.device for place in rank_places(agents)] == [0, 1, 2]
    check_devices(agents)


def test_a_rank_with_gpus_of_its_own_has_the_first():
    agents = [joined(0, devices=["4"]), joined(1, devices=["5"])]
    assert [place.device for place in rank_places(agents)] == [0, 0]
    check_devices(agents)


def test_machines_do_not_share_gpus():
    agents = [joined(0, devices=["0"]), joined(1, devices=["0"], node="machine-b", node_id="b")]
    assert [place.device for place in rank_places(agents)] == [0, 0]
    assert [place.node_id for place in rank_places(agents)] == ["a", "b"]


def test_without_a_driver_there_is_no_gpu():
    with pytest.raises(CapacityError, match="rank 0 on machine-a, where 0 are visible"):
        check_devices([joined(0)])


def test_an_address_that_only_this_machine_has_is_warned_of(scene, caplog):
    scene()
    assert "only workers on this machine can join at 127.0.0.1" in caplog.text


def test_without_an_address_nothing_listens():
    with pytest.raises(SettingsError, match="set --worker-address HOST or HOST:PORT"):
        TcpJoinPoint(settings(worker_address=""), WorkerGrid(2), None, needs_gpus=False)


def test_an_executor_may_know_the_address():
    point = TcpJoinPoint(settings(worker_address=""), WorkerGrid(2), "127.0.0.1", needs_gpus=False)
    assert point.address.startswith("127.0.0.1:")
    point.close()


def test_a_key_is_written_for_the_start_and_removed(tmp_path):
    file = tmp_path / "key"
    point = TcpJoinPoint(settings(worker_key_file=str(file)), WorkerGrid(2), None, needs_gpus=False)
    assert LaunchKey.read(file, 1).text == point.key
    point.close()
    assert not file.exists()


def test_a_key_of_a_start_that_was_killed_is_not_used_again(tmp_path):
    file = tmp_path / "key"
    left = key_left_in(file)
    point = TcpJoinPoint(settings(worker_key_file=str(file)), WorkerGrid(2), None, needs_gpus=False)
    assert point.key != left
    assert LaunchKey.read(file, 1).text == point.key
    point.close()
    assert not file.exists()


def test_a_second_engine_with_the_same_file_is_refused_until_the_first_has_its_workers(tmp_path):
    given = settings(worker_key_file=str(tmp_path / "key"))
    first = TcpJoinPoint(given, ONE, None, needs_gpus=False)
    with pytest.raises(SettingsError, match="the launch key of another engine"):
        TcpJoinPoint(given, ONE, None, needs_gpus=False)
    first.remove_key()
    second = TcpJoinPoint(given, ONE, None, needs_gpus=False)
    first.close()
    assert LaunchKey.read(tmp_path / "key", 1).text == second.key
    second.close()


def test_a_key_that_was_there_stays(tmp_path):
    file = tmp_path / "key"
    key = LaunchKey.new()
    key.write(file)
    given = settings(worker_key_file=str(file))
    point = TcpJoinPoint(given, WorkerGrid(2), None, needs_gpus=False)
    assert point.key == key.text
    point.close()
    assert file.exists()


def test_a_key_is_not_left_when_nothing_can_listen(tmp_path):
    file = tmp_path / "key"
    given = settings(worker_key_file=str(file), worker_address="192.0.2.1:9")
    with pytest.raises(SettingsError):
        TcpJoinPoint(given, WorkerGrid(2), None, needs_gpus=False)
    assert not file.exists()
