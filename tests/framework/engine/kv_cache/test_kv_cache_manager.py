import msgspec
import pytest
from engine_parts import make_message

from quire.engine.kv_cache.block_pool import NULL_BLOCK
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_cache.kv_plan import fixed_plan
from quire.engine.request import Request
from quire.interfaces.kv_cache import KVLayer
from quire.messages import AdapterRef, MediaSpan
from quire_kv_cache_specs.chunked_local import ChunkedLocalAttentionSpec
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

FULL = (FullAttentionSpec, ())
WINDOW = (SlidingWindowSpec, (("window", 5),))
CHUNK = (ChunkedLocalAttentionSpec, (("chunk", 8),))


def make_kv(*kinds, num_blocks=40, enable_prefix_caching=True, max_step_tokens=16):
    specs = [
        kind(KVLayer(f"layers.{i}", "spec", 1, 8, params), 4, "float32")
        for i, (kind, params) in enumerate(kinds or [FULL])
    ]
    return KVCacheManager(
        fixed_plan(specs, num_blocks),
        enable_prefix_caching=enable_prefix_caching,
        max_step_tokens=max_step_tokens,
    )


def make_request(kv, prompt, **changes):
    max_tokens = changes.pop("max_tokens", 4)
    params = {"prompt_logprobs": changes.pop("prompt_logprobs", None)}
    message = make_message("a", prompt=prompt, max_tokens=max_tokens, **params)
    request = Request(msgspec.structs.replace(message, **changes), len(kv.specs))
    kv.prepare(request)
    return request


def compute(kv, prompt, **changes):
    """A request whose prompt is computed."""
    request = make_request(kv, prompt, **changes)
    kv.grow(request, len(prompt))
    request.num_computed_tokens = len(prompt)
    kv.commit(request, len(prompt))
    kv.free_unneeded(request, len(prompt))
    return request


def end(kv, request):
    kv.free(kv.detach_tables(request))


def hit(kv, prompt, **changes):
    """How many tokens a new request finds computed."""
    found = kv.find_prefix(make_request(kv, prompt, **changes))
    return 0 if found is None else found.num_blocks * kv.block_size


def test_a_prefix_is_found_while_its_request_runs_and_after_it():
    kv = make_kv()
    request = compute(kv, range(10))
    assert hit(kv, range(20)) == 8
    end(kv, request)
    assert hit(kv, range(20)) == 8
    assert kv.pool.num_used == 0


def test_a_prompt_of_whole_blocks_computes_its_last_block():
    kv = make_kv()
    compute(kv, range(12))
    assert hit(kv, range(12)) == 8
    assert hit(kv, range(13)) == 12
    assert hit(kv, range(8)) == 4
    assert hit(kv, range(4)) == 0


def test_a_block_that_is_not_full_is_not_found():
    kv = make_kv()
    compute(kv, range(7))
    assert hit(kv, range(20)) == 4


def test_a_block_that_was_let_go_before_it_was_named_is_not_found():
    kv = make_kv(WINDOW)
    request = make_request(kv, range(16))
    kv.grow(request, 16)
    kv.free_unneeded(request, 16)
    assert request.block_ids[0][:3] == [NULL_BLOCK] * 3
    kv.commit(request, 16)
    found = [kv.pool.find(0, block_hash) for block_hash in request.hashes[1:]]
    assert found == [None, None, None, request.block_ids[0][3]]


def test_what_differs_in_one_token_is_found_up_to_that_block():
    kv = make_kv()
    compute(kv, range(16))
    assert hit(kv, [0, 1, 2, 3, 4, 5, 99, 7, 8, 9, 10, 11, 12]) == 4
    assert hit(kv, [99, *range(1, 16)]) == 0


def test_generated_tokens_are_found_by_the_next_turn():
    kv = make_kv()
    request = compute(kv, range(6))
    for token in range(100, 107):
        request.token_ids.append(token)
    kv.grow(request, 12)
    kv.commit(request, 12)
    end(kv, request)
    assert hit(kv, [*range(6), *range(100, 107), 50, 51]) == 12


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"cache_salt": "mine"}, {}),
        ({"cache_salt": "mine"}, {"cache_salt": "theirs"}),
        ({"adapter": AdapterRef("one", "p", "1")}, {}),
        ({"adapter": AdapterRef("one", "p", "1")}, {"adapter": AdapterRef("one", "p", "2")}),
    ],
)
def test_another_salt_or_adapter_finds_nothing(mine, theirs):
    kv = make_kv()
    compute(kv, range(16), **mine)
    assert hit(kv, range(16), **theirs) == 0
    assert hit(kv, range(16), **mine) == 12


def test_a_request_for_prompt_logprobs_finds_nothing_and_is_found():
    kv = make_kv()
    compute(kv, range(16), prompt_logprobs=1)
    assert hit(kv, range(16), prompt_logprobs=1) == 0
    assert hit(kv, range(16)) == 12


def test_without_the_cache_nothing_is_named_or_found():
    kv = make_kv(enable_prefix_caching=False)
    request = compute(kv, range(16))
    assert request.hashes == []
    assert hit(kv, range(16)) == 0
    end(kv, request)
    assert kv.pool.num_cached == 0


def test_a_hit_is_owned_and_its_blocks_are_the_same():
    kv = make_kv()
    first = compute(kv, range(12))
    second = make_request(kv, range(20))
    kv.attach_prefix(second, kv.find_prefix(second))
    assert second.block_ids == first.block_ids
    assert second.num_computed_tokens == 12
    assert all(kv.pool.references(block) == 2 for block in first.block_ids[0])


def test_a_reset_forgets_what_was_computed():
    kv = make_kv()
    compute(kv, range(12))
    kv.reset()
    assert hit(kv, range(20)) == 0


def test_a_window_needs_only_its_last_blocks():
    kv = make_kv(WINDOW)
    request = compute(kv, range(24))
    assert request.block_ids[0][:5] == [0] * 5, "20 tokens are behind the window of token 24"
    end(kv, request)
    found = kv.find_prefix(make_request(kv, range(25)))
    assert found.num_blocks == 6
    assert [bool(block) for block in found.block_ids[0]] == [False] * 5 + [True]


def test_a_hit_counts_as_far_as_every_group_has_it():
    kv = make_kv(FULL, WINDOW)
    request = compute(kv, range(24))
    end(kv, request)
    assert hit(kv, range(40)) == 24
    group, name = 1, request.hashes[6]
    (window_block,) = [kv.pool.find(group, name)]
    while kv.pool.find(group, name) is not None:  # other requests need the room
        kv.pool.allocate(1)
    assert window_block is not None
    assert hit(kv, range(40)) < 24


def test_three_groups_agree_on_a_length_that_suits_all():
    """The window has blocks 1 and 4; of the chunk that begins with block 4 nothing is there."""
    kv = make_kv(FULL, WINDOW, CHUNK)
    request = make_request(kv, range(24))
    for group, indices in enumerate([range(5), (1, 4), range(4)]):
        blocks = kv.pool.allocate(len(indices))
        for block, index in zip(blocks, indices, strict=True):
            kv.pool.add_to_cache(block, group, request.hashes[1 + index])
    longer = make_request(kv, range(30))
    found = kv.find_prefix(longer)
    assert found.num_blocks == 2, "5: no chunk; 4 and 3: no window; at 2 a chunk begins"
    assert [[bool(block) for block in table] for table in found.block_ids] == [
        [True, True], [False, True], [False, False],
    ]  # fmt: skip


def test_a_table_grows_by_what_it_lacks_or_not_at_all():
    kv = make_kv(num_blocks=5)
    request = make_request(kv, range(10), max_tokens=20)
    assert [len(ids) for ids in kv.grow(request, 10)] == [3]
    assert kv.grow(request, 12) == [[]]
    assert kv.grow(request, 17) is None
    assert len(request.block_ids[0]) == 3
    assert kv.pool.num_free == 1


def test_a_window_is_let_go_of_while_its_request_runs():
    kv = make_kv(WINDOW)
    request = make_request(kv, range(40), max_tokens=100)
    for num_tokens in range(1, 41):
        kv.grow(request, num_tokens)
        kv.commit(request, num_tokens)
        kv.free_unneeded(request, num_tokens)
        assert kv.pool.num_used <= 3
    assert len(request.block_ids[0]) == 10


def test_a_request_that_can_never_fit_is_recognized():
    kv = make_kv(num_blocks=5)
    assert kv.can_ever_fit(make_request(kv, range(10), max_tokens=7))  # 16 are computed
    assert not kv.can_ever_fit(make_request(kv, range(10), max_tokens=8))


def test_what_a_request_needs_counts_cached_blocks_that_a_hit_would_revive():
    kv = make_kv(num_blocks=5)
    end(kv, compute(kv, range(12)))
    request = make_request(kv, range(14))
    found = kv.find_prefix(request)
    assert found.num_unreferenced == 3
    assert kv.needed_to_begin(request, found) == 3 + 1
    assert kv.needed_to_begin(request, None) == 4


def test_a_hit_names_in_each_group_what_it_needs_and_counts_what_it_revives():
    kv = make_kv(FULL, WINDOW)
    end(kv, compute(kv, range(24)))
    request = make_request(kv, range(26))
    found = kv.find_prefix(request)
    assert [[bool(block) for block in table] for table in found.block_ids] == [
        [True] * 6,
        [False] * 5 + [True],
    ]
    assert found.num_unreferenced == 6 + 1
    full, window = (spec.max_blocks_held(26, 16) for spec in kv.specs)
    assert kv.needed_to_begin(request, found) == 7 + (full - 6) + (window - 1)
    kv.attach_prefix(request, found)
    assert request.num_freed == [0, 5]
    assert kv.num_still_needed(request) == (full - 6) + (window - 1)
    assert kv.commit(request, 24) == range(6, 6), "what was found is not offered again"
    assert kv.missing(request, 25) == [1, 1]


def test_what_left_a_window_is_not_held():
    kv = make_kv(WINDOW)
    request = compute(kv, range(24), max_tokens=20)
    assert request.num_freed == [5]
    assert kv.num_still_needed(request) == kv.specs[0].max_blocks_held(24, 16) - 1


def test_of_what_left_a_window_the_end_is_evicted_first():
    kv = make_kv(WINDOW, max_step_tokens=24)
    request = make_request(kv, range(24))
    kv.grow(request, 24)
    blocks = list(request.block_ids[0])
    kv.commit(request, 24)
    kv.free_unneeded(request, 24)
    assert kv.pool.cached_blocks() == blocks[4::-1]
    end(kv, request)
    assert kv.pool.cached_blocks() == [*blocks[4::-1], blocks[5]]


def test_a_content_is_found_if_one_group_has_it():
    kv = make_kv(FULL, WINDOW)
    request = make_request(kv, range(8))
    (block,) = kv.pool.allocate(1)
    kv.pool.add_to_cache(block, 1, request.hashes[1])
    assert kv.is_cached(request.hashes[1])
    assert not kv.is_cached(request.hashes[2])


def test_the_last_free_block_can_be_had():
    kv = make_kv(num_blocks=3)
    request = make_request(kv, range(8))
    assert kv.grow(request, 8) is not None
    assert kv.pool.num_free == 0


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "next_check"), [(5, 20, 8), (8, 20, 8), (9, 20, 12), (9, 2, 11)]
)
def test_the_next_check_is_where_the_table_or_the_completion_ends(
    num_tokens, max_tokens, next_check
):
    kv = make_kv()
    request = make_request(kv, range(10), max_tokens=max_tokens)
    kv.grow(request, num_tokens)
    assert request.next_check == next_check
    request.draft_token_ids = [1]
    kv.set_next_check(request, num_tokens)
    assert request.next_check == 0, "drafts are looked at"
    request.draft_token_ids, request.num_drafts_in_flight = [], 1
    kv.set_next_check(request, num_tokens)
    assert request.next_check == 0


def test_a_block_is_full_at_its_last_token():
    kv = make_kv()
    request = make_request(kv, range(20))
    kv.grow(request, 20)
    assert [kv.commit(request, count) for count in (3, 4, 11)] == [range(0), range(1), range(1, 2)]
    assert (request.num_committed_blocks, request.next_block_end) == (2, 12)
    assert kv.commit(request, 7) == range(2, 1), "fewer than before"
    assert request.num_committed_blocks == 2


def test_detached_tables_leave_the_request_empty():
    kv = make_kv(WINDOW)
    request = compute(kv, range(24), max_tokens=20)
    tables = kv.detach_tables(request)
    assert len(tables[0]) == 6
    assert (request.block_ids, request.num_freed) == ([[]], [0])
    assert (request.num_committed_blocks, request.next_block_end, request.next_check) == (0, 0, 0)
    assert kv.num_freed_by(tables) == 1, "five are null"
    kv.pool.add_references(tables[0])
    assert kv.num_freed_by(tables) == 0
    kv.free(tables)
    kv.free(tables)
    request.num_computed_tokens = 0
    kv.grow(request, 24)
    assert kv.commit(request, 24) == range(6), "computed again, offered again"


def test_completions_of_one_prompt_share_its_hashes_only():
    kv = make_kv()
    requests = [make_request(kv, range(8)) for _ in range(2)]
    for index, request in enumerate(requests):
        request.token_ids += range(100 * index, 100 * index + 8)
        kv.grow(request, 16)
        kv.commit(request, 16)
        assert len(request.hashes) == 1 + 4
        assert len(make_request(kv, range(8)).hashes) == 1 + 2
    first, second = (request.hashes for request in requests)
    assert first[:3] == second[:3]
    assert not set(first[3:]) & set(second[3:])


def test_a_prompt_with_another_image_has_other_names():
    kv = make_kv()
    cat, dog = (
        make_request(kv, range(8), media=(MediaSpan(2, 4, name),)) for name in ("cat", "dog")
    )
    assert not set(cat.hashes[1:]) & set(dog.hashes[1:])
    for request in (cat, dog):
        request.token_ids += range(8, 12)
        kv.grow(request, 12)
        kv.commit(request, 12)
    assert cat.hashes[3] != dog.hashes[3]


def test_an_image_after_the_full_blocks_counts_when_its_block_fills():
    kv = make_kv()
    cat, dog = (
        make_request(kv, range(7), media=(MediaSpan(5, 2, name),)) for name in ("cat", "dog")
    )
    assert cat.hashes == dog.hashes, "only the first block is full"
    for request in (cat, dog):
        request.token_ids.append(7)
        kv.grow(request, 8)
        kv.commit(request, 8)
    assert cat.hashes[2] != dog.hashes[2]


def test_the_last_block_of_a_prompt_of_whole_blocks_is_not_looked_up():
    kv = make_kv()
    request = make_request(kv, range(12))
    assert kv.hashes_after(request, 0) == request.hashes[1:3]
    assert kv.hashes_after(request, 1) == request.hashes[2:3]
    assert kv.hashes_after(make_request(kv, range(13)), 0) == request.hashes[1:4]


def test_a_request_must_fit_the_blocks_without_the_null_block():
    kv = make_kv(num_blocks=5)
    request = make_request(kv, range(10), max_tokens=11)
    assert kv.blocks_to_finish(request) == 5 == kv.pool.num_blocks
    assert not kv.can_ever_fit(request)


def test_a_request_that_may_not_be_kept_is_not_found():
    kv = make_kv()
    request = make_request(kv, range(10))
    request.is_cacheable = False
    kv.grow(request, 10)
    kv.commit(request, 10)
    end(kv, request)
    assert hit(kv, range(20)) == 0
    assert kv.pool.num_cached == 0


def test_of_a_released_table_the_end_is_evicted_first():
    kv = make_kv()
    request = compute(kv, range(12))
    (table,) = request.block_ids
    end(kv, request)
    assert kv.pool.cached_blocks() == table[::-1]


def test_a_model_without_kv_layers_has_no_prefix_cache():
    assert not KVCacheManager(fixed_plan([], 1)).has_cache
