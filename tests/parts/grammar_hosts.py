"""What tests of grammar hosts share: a vocabulary of bytes, waits for outcomes, and masks."""

import time

from quire.engine.grammar.fork_server_client import GrammarForkServer
from quire.engine.grammar.grammar_host import GrammarHost
from quire.errors import RequestError
from quire.interfaces.structured_output import Vocabulary
from quire.sampling_params import StructuredOutputsParams

EOS = 256
VOCABULARY = Vocabulary({bytes([byte]): [byte] for byte in range(256)}, (EOS,), EOS + 1)
WORDS = StructuredOutputsParams(regex="(?:[a-c]{1,4}-){2,40}end")


def wait_for_outcomes(
    host: GrammarHost, *request_ids: str, within_s: float = 30.0
) -> dict[str, RequestError | None]:
    """Poll until these requests have an outcome; return all outcomes by id."""
    outcomes: dict[str, RequestError | None] = {}
    until = time.monotonic() + within_s
    while not outcomes.keys() >= set(request_ids):
        assert time.monotonic() < until, f"no outcome of {set(request_ids) - outcomes.keys()}"
        host.wait_for_compile(0.1)
        outcomes.update(host.poll())
    return outcomes


def wait_for_outcome(
    host: GrammarHost, request_id: str, within_s: float = 30.0
) -> RequestError | None:
    """Poll until a request has an outcome."""
    return wait_for_outcomes(host, request_id, within_s=within_s)[request_id]


def ready(host: GrammarHost, request_id: str, params: StructuredOutputsParams) -> None:
    """Submit a request, and wait until its grammar is compiled."""
    host.submit(request_id, params)
    assert wait_for_outcome(host, request_id) is None


def mask(host: GrammarHost, request_id: str, slot: int = 0) -> set[int]:
    """Return the tokens that a request may sample next."""
    host.request_masks([(slot, request_id)])
    [row] = host.collect_masks()
    assert row.slot == slot
    assert host.collect_masks() == [], "a mask is collected once"
    return allowed(row.words)


def allowed(words: bytes) -> set[int]:
    """Return the tokens of a bitmask."""
    return {v for v in range(8 * len(words)) if words[v // 8] >> v % 8 & 1}


def fork_server_of(host: GrammarHost) -> GrammarForkServer:
    """Return the process that forks a host's grammar processes."""
    server = host._parts[0]._fork_server
    assert isinstance(server, GrammarForkServer)
    return server
