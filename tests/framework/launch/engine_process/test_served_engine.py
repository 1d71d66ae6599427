"""The engine process: agreement with its parent about the composition, and an orderly end."""

import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest
from scripted_core import Reply, ScriptedCore, counting

from quire.config import ServerSettings, Settings
from quire.errors import PluginError
from quire.launch.composing import compose_engine
from quire.launch.engine_process.engine_config import engine_config
from quire.launch.engine_process.engine_wire import (
    Add,
    Connected,
    EncodedRequest,
    EngineConfig,
    Failed,
    FromEngine,
    Shutdown,
    ToEngine,
)
from quire.launch.engine_process.served_engine import check_agreement, serve, start
from quire.messages import EngineRequest
from quire.plugins.loading import load_plugins
from quire.process.children.child_process import SocketFolder
from quire.process.ipc import decode, encode
from quire.process.local.channel import Channel
from quire.sampling_params import SamplingParams
from quire.testing.checkpoints import write_checkpoint

REQUEST = EngineRequest(
    request_id="a", token_ids=[1, 2], params=SamplingParams(), max_tokens=2, seed=0
)


@pytest.fixture(scope="module")
def its(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("model"), "LlamaForCausalLM").folder
    options = {"model": str(folder), "api_key": ["secret"], "port": 1234}
    settings = Settings.from_options(options)
    return compose_engine(settings, load_plugins(settings.plugins))


@pytest.fixture
def config(its):
    with SocketFolder() as folder:
        return decode(encode(engine_config(its, folder.address)), EngineConfig)


def test_the_config_says_what_was_chosen_and_nothing_of_the_server(its, config):
    assert config.settings.server == ServerSettings()
    assert replace(config.settings, server=its.settings.server) == its.settings
    assert f"checkpoint {its.composition.checkpoint.folder}" in config.choices
    check_agreement(config, its.composition)


@pytest.mark.parametrize(
    ("index", "line"),
    [
        (0, "quire 9.9 in /elsewhere"),
        (2, "torch 1.0"),
        (3, "checkpoint /other"),
        (4, "models M acme 1.0"),
    ],
)
def test_another_choice_than_the_parents_is_refused_with_the_difference(its, config, index, line):
    choices = [*config.choices[:index], line, *config.choices[index + 1 :]]
    theirs = msgspec.structs.replace(config, choices=choices)
    with pytest.raises(PluginError, match="chose other parts than its parent"):
        start(theirs)
    with pytest.raises(PluginError, match="chose other parts than its parent") as caught:
        check_agreement(theirs, its.composition)
    own = config.choices[index]
    assert {f"-{line}", f"+{own}"} < set(str(caught.value).splitlines())


@pytest.fixture
def ends(tmp_path):
    parent = Channel(FromEngine, f"unix://{tmp_path}/a", is_listening=True)
    engine = Channel(ToEngine, f"unix://{tmp_path}/a", is_listening=False)
    yield parent, engine
    parent.close()
    engine.close()


def greet(parent, engine):
    """Connect the two; a listener cannot send before that."""
    engine.send(Connected())
    assert parent.take(5.0) == Connected()


def test_a_core_is_served_until_the_parent_says_stop_and_shut_down_then(ends):
    parent, engine = ends
    greet(parent, engine)
    core = ScriptedCore(counting)
    parent.send(Add([EncodedRequest.of(REQUEST)]))
    parent.send(Shutdown())
    assert serve(core, engine) is True
    assert core.is_shut_down
    assert core.num_steps <= 1, "nothing is computed behind the stop"


def test_a_core_that_fails_says_why_and_is_shut_down(ends):
    parent, engine = ends
    greet(parent, engine)
    core = ScriptedCore(lambda request: Reply([1], RuntimeError("out of smoke")))
    parent.send(Add([EncodedRequest.of(REQUEST)]))
    assert serve(core, engine) is False
    assert core.is_shut_down
    while not isinstance(message := parent.take(5.0), Failed):
        assert message is not None
    assert message.error.message == "the engine died: RuntimeError: out of smoke"


def test_an_engine_process_imports_nothing_that_only_other_kinds_of_engines_need():
    code = (
        "import sys; import quire.launch.engine_process.served_engine; "
        "unused = ('zmq', 'torch', 'starlette', 'asyncio', 'transformers', "
        "'quire.launch.workers.nodes', 'quire.launch.replicas', 'quire.server'); "
        "sys.exit(any(name in sys.modules for name in unused))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
