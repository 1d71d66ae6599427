import pytest
from grammar_hosts import VOCABULARY

from quire.engine.grammar.grammar_host import GrammarHost
from quire.engine.grammar.grammar_pool import GrammarLimits


@pytest.fixture
def make_host():
    """Make hosts with some limits; they are shut down after the test."""
    hosts = []

    def make(**limits):
        hosts.append(GrammarHost(lambda: VOCABULARY, max_rows=8, limits=GrammarLimits(**limits)))
        return hosts[-1]

    yield make
    for host in hosts:
        host.shutdown()
