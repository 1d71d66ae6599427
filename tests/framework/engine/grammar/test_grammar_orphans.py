"""Grammar processes do not outlive their engine, not even while a backend is being built."""

import os
import subprocess
import sys

from installed import write_distribution
from processes import descendants, eventually, is_running, path_with

STUCK_PLUGIN = """
    from quire import hookimpl
    from quire.interfaces.structured_output import GrammarCapabilities

    @hookimpl
    def register_structured_output(registry):
        capabilities = GrammarCapabilities(frozenset({"regex"}))
        registry.add("stuck", "stuck_backend:Stuck", capabilities=capabilities)
"""
STUCK_BACKEND = """
    import time
    from quire.interfaces.structured_output import StructuredOutputBackend

    class Stuck(StructuredOutputBackend):
        def __init__(self, vocabulary):
            print("building", flush=True)
            time.sleep(60)

        @classmethod
        def check(cls, params):
            pass

        def compile(self, params):
            raise AssertionError("never built")
"""
ENGINE = """
import time
from quire.engine.grammar.grammar_host import GrammarHost
from quire.interfaces.structured_output import Vocabulary
from quire.sampling_params import StructuredOutputsParams

host = GrammarHost(lambda: Vocabulary({b"a": [0]}, (1,), 2), backends=["stuck"])
host.submit("r", StructuredOutputsParams(regex="a"))
time.sleep(60)
"""


def test_a_fork_server_that_builds_a_backend_ends_with_its_engine(tmp_path):
    write_distribution(
        tmp_path,
        "stuck",
        {"stuck": "stuck_plugin"},
        stuck_plugin=STUCK_PLUGIN,
        stuck_backend=STUCK_BACKEND,
    )
    environment = os.environ | {"PYTHONPATH": path_with(tmp_path)}
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True, env=environment
    )
    with engine:
        assert engine.stdout.readline() == "building\n"
        below = descendants(engine.pid)
        assert below
        engine.kill()
        assert eventually(lambda: not any(map(is_running, below))) < 2.0
