"""Scheduler and KV cache under any order of events: nothing is lost, nothing is owned twice."""

from collections import Counter

from engine_parts import CountingExecutor, ScriptedGrammars, make_message, make_scheduler
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.engine.core import EngineCore

NUM_BLOCKS = 12
BUDGET = 9
MAX_SEQS = 4


class EngineMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        scheduler = make_scheduler(
            NUM_BLOCKS, max_adapters=2, max_num_seqs=MAX_SEQS, max_num_batched_tokens=BUDGET
        )
        self.executor = CountingExecutor(vocab_size=10**9)
        self.core = EngineCore(scheduler, self.executor, ScriptedGrammars())
        self.expected: dict[str, list[int]] = {}
        self.answers: dict[str, list[int]] = {}
        self.count = 0
        self.idle_steps = 0

    @rule(
        length=st.integers(1, 20),
        max_tokens=st.integers(1, 20),
        adapter=st.sampled_from([None, "one", "two", "three"]),
    )
    def add(self, length, max_tokens, adapter):
        self.count += 1
        start = 10_000 * self.count
        prompt = range(start, start + length)
        name = f"r{self.count}"
        self.core.add(make_message(name, prompt=prompt, max_tokens=max_tokens, adapter=adapter))
        self.expected[name] = list(range(start + length, start + length + max_tokens))

    @precondition(lambda self: self.core.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.core.scheduler.requests)))
        self.core.abort([name])
        del self.expected[name]
        self.answers.pop(name, None)

    @rule()
    def step(self):
        had_work = self.core.has_work()
        for output in self.core.step().outputs:
            if output.error:
                assert output.error.code == "out_of_capacity"
                del self.expected[output.request_id]
                continue
            self.answers.setdefault(output.request_id, []).extend(output.token_ids)
            answer = self.answers[output.request_id]
            assert answer == self.expected[output.request_id][: len(answer)]
            if output.finish_reason:
                assert self.answers.pop(output.request_id) == self.expected.pop(output.request_id)
        if had_work and self.core.has_work():
            assert self.executor.plan is not None
            assert self.executor.plan.requests, "work is waiting and nothing was scheduled"

    @invariant()
    def every_block_has_one_owner(self):
        pool = self.core.scheduler.kv.pool
        owned = Counter(
            block
            for request in self.core.scheduler.requests.values()
            for table in request.block_ids
            for block in table
        )
        assert 0 not in owned, "the null block belongs to nobody"
        assert not owned or max(owned.values()) == 1
        assert owned.total() == pool.num_used
        assert pool.num_used + pool.num_free == NUM_BLOCKS - 1

    @invariant()
    def nothing_is_over_budget(self):
        scheduler = self.core.scheduler
        assert len(scheduler.running) <= MAX_SEQS
        assert all(tokens <= BUDGET for tokens in self.executor.num_tokens_per_step)
        adapters = {r.message.adapter for r in scheduler.running if r.message.adapter}
        assert len(adapters) <= 2

    @invariant()
    def computed_tokens_are_known_and_have_blocks(self):
        for request in self.core.scheduler.requests.values():
            assert request.num_computed_tokens <= len(request.token_ids)
            assert all(len(t) * 4 >= request.num_computed_tokens for t in request.block_ids)

    @invariant()
    def the_worker_agrees(self):
        for request in self.core.scheduler.running:
            assert self.executor.blocks[request.slot] == request.block_ids
            assert self.executor.tokens[request.slot] == request.token_ids
            assert self.executor.computed[request.slot] == request.num_computed_tokens

    def teardown(self):
        for _ in range(2000):
            if not self.core.has_work():
                break
            self.step()
        assert not self.core.has_work(), "work is left after 2,000 steps"
        assert not self.expected
        assert self.core.scheduler.kv.pool.num_used == 0


TestEngineState = EngineMachine.TestCase
TestEngineState.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
