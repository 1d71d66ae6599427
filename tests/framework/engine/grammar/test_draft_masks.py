"""Masks after draft tokens are those of a matcher that has accepted them, and nothing is kept."""

import pytest
from grammar_hosts import VOCABULARY, allowed, mask, ready
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.config import PluginSettings
from quire.engine.grammar.grammar_host import GrammarHost
from quire.plugins.loading import load_plugins
from quire.sampling_params import StructuredOutputsParams as Params

GRAMMARS = (
    Params(regex="(?:[a-c]{1,4}-){2,3}end"),
    Params(json={"type": "array", "items": {"enum": ["ab", 1]}, "maxItems": 3}),
    Params(choice=("abc", "abcd", "b")),
)
MAX_DRAFTS = 6


@pytest.fixture(scope="module", params=["llguidance", "outlines"])
def host(request):
    host = GrammarHost(lambda: VOCABULARY, backends=(request.param,), max_rows=4 * MAX_DRAFTS)
    yield host
    host.shutdown()


@pytest.fixture(scope="module")
def compiled(host):
    """The grammars in this process."""
    registry = load_plugins(PluginSettings()).registries.structured_output
    backend = registry.get(host._backends[0])(VOCABULARY)
    return [backend.compile(params) for params in GRAMMARS]


def expected(grammar, token_ids):
    """Return the mask after tokens; None if the grammar forbids one of them."""
    matcher = grammar.matcher()
    words = bytearray(4 * -(-VOCABULARY.size // 32))
    if not all(matcher.accept(token_id) for token_id in token_ids):
        return None
    matcher.fill_bitmask(memoryview(words).cast("i"))
    return allowed(words)


def walk(data, grammar, length, stray):
    """Draw tokens that a grammar allows; if it may stray, others among them."""
    token_ids = []
    for _ in range(data.draw(st.integers(0, length))):
        follows = expected(grammar, token_ids) or set(b"ab[")
        token_ids.append(data.draw(st.sampled_from(sorted(follows))))
        if stray and data.draw(st.integers(0, 4)) == 0:
            token_ids.append(data.draw(st.integers(0, VOCABULARY.size - 1)))
    return token_ids[:length]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_masks_of_drafts_are_those_after_their_tokens(host, compiled, data):
    names, accepted, drafts = [], {}, {}
    for index, (params, grammar) in enumerate(zip(GRAMMARS, compiled, strict=True)):
        names.append(name := f"{index}")
        ready(host, name, params)
        accepted[name] = walk(data, grammar, 8, stray=False)
        drafts[name] = walk(data, grammar, MAX_DRAFTS, stray=True)
        host.accept(name, accepted[name])
    drafts.pop("1", None) if data.draw(st.booleans()) else None
    host.request_masks(list(enumerate(names)), drafts)
    masks = {(row.slot, row.sample): allowed(row.words) for row in host.collect_masks()}
    for slot, name in enumerate(names):
        draft = drafts.get(name, [])
        for sample in range(1 + len(draft)):
            after = expected(compiled[slot], accepted[name] + draft[:sample])
            assert masks.pop((slot, sample)) == (after or set())
        assert mask(host, name) == expected(compiled[slot], accepted[name]), "drafts are undone"
        host.release(name)
    assert not masks
    assert host.poll() == []


def test_there_is_a_row_for_each_draft_token(host):
    ready(host, "a", GRAMMARS[2])
    with pytest.raises(ValueError, match="25 masks in one step; the table has 24 rows"):
        host.request_masks([(0, "a")], {"a": [97] * 24})
    host.release("a")
