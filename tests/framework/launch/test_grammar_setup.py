"""Settings of the grammar process: time limit and chosen plugin."""

import pytest

from quire.config import Settings
from quire.launch.composing import compose_engine
from quire.launch.grammar_setup import make_grammars
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint


@pytest.fixture
def grammars(tmp_path):
    folder = str(write_checkpoint(tmp_path, "Qwen3ForCausalLM").folder)
    settings = Settings.from_options({"model": folder, "grammar_timeout_s": 7.5})
    grammars = make_grammars(compose_engine(settings, load_plugins(settings.plugins)))
    yield grammars
    grammars.shutdown()


def test_a_grammar_has_as_long_as_the_user_says(grammars):
    assert grammars._limits.timeout_s == 7.5


def test_the_process_takes_the_backend_of_the_plugin_that_the_engine_chose(grammars):
    assert grammars._plugins.prefer == (
        "structured_output:llguidance=quire_structured_output",
        "structured_output:outlines=quire_structured_output",
    )
