"""An engine under trial: all events that can happen to it, and the checks after each event.

The same trial is driven by Hypothesis, which finds the shortest way to a failure, and by a random
generator, which goes a long way.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from checking_executor import CheckingExecutor
from counting_grammars import CountingGrammars
from engine_invariants import check_all, check_as_new, check_budgets, check_late, check_stats
from event_account import EventAccount
from fickle_store import NEVER, FickleHost, FickleStore
from kv_contents import KVContents
from kv_memory import KVMemory
from plan_invariants import check_plan
from trial_requests import ADAPTERS, TrialRequest, message_of
from trial_scene import MIXES, POLICIES, Accounted, Scene, make_spec, settings_of

from quire.engine.core import EngineCore
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_cache.kv_plan import fixed_plan
from quire.engine.kv_store.kv_transfers import KVTransfers
from quire.engine.request import Request
from quire.engine.scheduling.scheduler import Scheduler
from quire.errors import GrammarError, RefusedError
from quire.messages import (
    EngineOutput,
    EngineRequest,
    ResetPrefixCache,
    StepPlan,
)

MUCH_LATER_S = 10_000.0
PATIENCE = 4  # steps in which nothing need happen; more only where a store is waited for
real_now_s = time.monotonic


@dataclass
class CompletionState:
    """Expected and emitted outputs of a request."""

    message: EngineRequest
    expected: list[int]
    reason: str
    emitted: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    may_fail: set[str] = field(default_factory=set)


class EngineTrial:
    """One engine, the events, and the account that is kept beside it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        specs = [make_spec(kind, index, scene) for index, kind in enumerate(MIXES[scene.mix])]
        plan = fixed_plan(specs, scene.num_blocks)
        kv = KVCacheManager(
            plan,
            enable_prefix_caching=scene.has_cache,
            max_step_tokens=scene.budget,
            reports_events=True,
        )
        self.events = EventAccount(kv)
        self.contents = KVContents(kv.block_size)
        memory = KVMemory(kv.specs, scene.num_blocks, self.contents)
        self.store = FickleStore({}, plan) if scene.has_store and scene.has_cache else None
        worker = FickleHost(self.store, memory) if self.store else None
        transfers = KVTransfers(self.store, kv, scene.store_timeout_s, "fickle") if worker else None
        if transfers is not None and scene.num_blocks in (12, 20):  # else hardly a load would fit
            transfers._open.max_blocks = kv.pool.num_usable
        self.policy = Accounted(POLICIES[scene.policy]())
        self.kv, self.memory, self.transfers = kv, memory, transfers
        self.scheduler = Scheduler(
            settings_of(scene),
            kv,
            self.policy,
            2,
            transfers,
            verifies_drafts=True,
            pipeline_parallel_size=scene.num_stages,
        )
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self._plan  # type: ignore[method-assign]
        self.executor = CheckingExecutor(memory, kv.pool, worker, scene.num_stages)
        self.grammars = CountingGrammars()
        self.core = EngineCore(
            self.scheduler,
            self.executor,
            self.executor,
            self.grammars,
            async_scheduling=scene.async_scheduling,
            pipeline_parallel_size=scene.num_stages,
        )
        self.completions: dict[str, CompletionState] = {}
        self.versions: Counter[str] = Counter()
        self.old_names: list[str] = []
        self.num_added = 0
        self.num_idle = 0
        self.missed_turns: Counter[Request] = Counter()  # steps of a pipeline without it, in which
        # it could be, since the last time when a request ended before its completion did
        self.seen: set[Request] = set()  # those that were there after the last event
        self.passed_s = 0.0  # on the trial's clock and on no other
        self.counts: Counter[str] = Counter()

    # -- events ----------------------------------------------------------------------------------

    def add(self, request: TrialRequest) -> None:
        """Add a request, or several with one prompt."""
        for child in range(request.n):
            self.num_added += 1
            name = f"r{self.num_added}"
            if request.has_old_name and self.old_names:
                name = self.old_names.pop()
            self._add(name, request, child)

    def abort(self, index: int) -> None:
        """End one of the requests."""
        if names := sorted(self.completions):
            name = names[index % len(names)]
            self.core.abort([name, "unknown"])
            self.missed_turns.clear()
            del self.completions[name]
            self.old_names.append(name)

    def step(self) -> None:
        """Let the engine step, and look at what it says and did."""
        had_work, is_stuck = self.core.has_work(), bool(self.grammars.due)
        self.executor.last_plan = None
        began_s, said = self.now_s(), None
        with patch("time.monotonic", self.now_s), suppress(KeyboardInterrupt):
            said = self.core.step()
        self.counts["steps"] += 1
        if said is None:
            self.counts["interrupts"] += 1
            return
        for output in said.outputs:
            self._take(output)
        self.events.take(said.kv_events)
        plan = self.executor.last_plan
        if plan is not None:
            check_budgets(self, plan)
        check_stats(self, said.stats, plan)
        check_late(self, began_s)
        is_planned = plan is not None and plan.requests
        has_moved = bool(said.outputs or said.kv_events or is_planned)
        self._watch(has_moved or is_stuck or not had_work)

    def interrupt(self, verb: str) -> None:
        """Let Ctrl-C come in the next call of a verb of the workers, and that step end there."""
        self.executor.interrupted_verb = verb

    def fail_step(self) -> None:
        """Let the next step of several requests fail as a whole, as on several workers."""
        self.executor.may_fail_step = True

    def step_much_later(self) -> None:
        """Step when every deadline has passed."""
        self.pass_time(MUCH_LATER_S)
        self.step()

    def pass_time(self, seconds: float) -> None:
        """Let nothing happen for so long."""
        self.passed_s += seconds
        self.missed_turns.clear()
        for completion in self.completions.values():
            if completion.message.timeout_s is not None:
                completion.may_fail.add("request_timeout")

    def now_s(self) -> float:
        """Return what the clock of this trial says."""
        return real_now_s() + self.passed_s

    def reset(self) -> None:
        """Reset the prefix cache."""
        self.executor.epoch += 1
        self.core.control(ResetPrefixCache())

    def swap_adapter(self, index: int) -> None:
        """Put another content under an adapter's name."""
        self.versions[ADAPTERS[index] or ""] += 1

    def fail_in_worker(self, index: int) -> None:
        """Let the next step of a running request fail."""
        if running := self.scheduler.running:
            request = running[index % len(running)]
            self.executor.failing_seed = request.message.seed
            self.completions[request.request_id].may_fail.add("request_failed")

    def draft(self, index: int, num_right: int, num_wrong: int) -> None:
        """Guess the next tokens of a running request, some of them rightly."""
        running = [r for r in self.scheduler.running if not r.has_grammar]
        if not running or any(self.memory.is_state(g) for g in range(len(self.kv.specs))):
            return
        request = running[index % len(running)]
        completion = self.completions[request.request_id]
        right = completion.expected[len(completion.emitted) :][:num_right]
        drafts = [*right, *[7] * num_wrong]
        if self.scene.num_stages > 1:
            with pytest.raises(RefusedError):
                self.scheduler.set_drafts(request.request_id, drafts)
        elif self.scheduler.set_drafts(request.request_id, drafts):
            self.counts["drafts"] += 1

    def accept_at_most(self, count: int) -> None:
        """Let the worker accept so many drafts, even where more are right."""
        self.executor.max_accepted = count

    def ready_grammars(self, has_failed: bool) -> None:
        """Let the grammars that are being compiled be ready, or not."""
        due, self.grammars.due = self.grammars.due, []
        for name in due:
            self._end_grammar(name, has_failed)

    def fail_grammar(self, index: int) -> None:
        """Let a grammar fail while its request runs."""
        running = [r for r in self.scheduler.running if r.has_grammar]
        if running:
            self._end_grammar(running[index % len(running)].request_id, True)

    def set_mood(self, mood: str, value: int) -> None:
        """Change how the store behaves; `raising` and `is_dead` are for ever."""
        if self.store is None:
            return
        moods = self.store.moods
        if mood == "raising":
            methods = ("lookup", "start_load", "start_save", "plan_step", "finish", "reset")
            moods.raising.add(methods[value % len(methods)])
        elif mood == "latency":
            moods.latency = (0, 1, 2, 3, NEVER)[value % 5]
        elif mood == "is_pending":
            moods.is_pending = bool(value % 2)
        elif mood == "fails":
            moods.fails = bool(value % 2)
        else:
            moods.is_dead = True

    def drain(self) -> None:
        """Step until nothing is left; then the engine must be as new."""
        self.ready_grammars(False)
        most = 200 + 6 * sum(len(a.message.token_ids) + len(a.expected) + 2 for a in self.live)
        most *= self.scene.num_stages  # steps that complete one and launch none
        for _ in range(most):
            if not self.core.has_work():
                break
            self.step()
            self.ready_grammars(False)
            self.check()
        assert not self.core.has_work(), f"work is left after {most} steps: {self.describe()}"
        assert not self.completions, f"no completion for {sorted(self.completions)}"
        check_as_new(self)

    def check(self) -> None:
        """See that every invariant holds."""
        check_all(self)
        self.events.check(self.core)
        if self.transfers is not None:
            held = [block for t in self.transfers._open.values() for block in t.block_ids]
            assert len(held) <= self.transfers._open.max_blocks, "transfers hold too much"

    @property
    def live(self) -> Sequence[CompletionState]:
        """The requests that are not over."""
        return list(self.completions.values())

    def describe(self) -> str:
        """Return a text with the state of every request."""
        return ", ".join(
            f"{r.request_id} {r.status.value} {r.num_computed_tokens}/{len(r.token_ids)}"
            for r in self.scheduler.requests.values()
        )

    # -- the account -----------------------------------------------------------------------------

    def _plan(self) -> StepPlan:
        """Let the scheduler plan a step, and look at the plan before anything else happens."""
        num_preemptions = self.scheduler.num_preemptions
        plan = self._schedule()
        check_plan(self, plan, self.scheduler.num_preemptions - num_preemptions)
        for given in plan.assignments:
            request = self.scheduler.request_in(given.slot)
            if request is not None and request.num_preemptions == 0:
                assert request.num_cached_tokens == given.num_computed_tokens
                if self.kv.has_cache and request.reads_cache:
                    self.counts["prefix queries"] += request.num_prompt_tokens
                    self.counts["prefix hits"] += given.num_computed_tokens
        return plan

    def _add(self, name: str, request: TrialRequest, child: int) -> None:
        version = self.versions[ADAPTERS[request.adapter] or ""]
        message = message_of(request, name, child, self.num_added, version, self.now_s())
        completion = self._expect(message)
        if request.is_cursed:
            completion.reason = "error"
            completion.may_fail.add("request_failed")
        self.completions[name] = completion
        self.executor.salts[message.seed] = message.cache_salt
        self.executor.limits[message.seed] = len(message.token_ids) + message.max_tokens - 1
        if request.has_grammar:
            self.executor.bound.add(message.seed)
        self.core.add(message)

    def _expect(self, message: EngineRequest) -> CompletionState:
        """Return the completion of a request alone, without an engine."""
        adapter = "" if message.adapter is None else message.adapter.content_hash
        root = self.contents.root(adapter, message.cache_salt)
        node = self.contents.path(root, message.token_ids)[-1]
        expected: list[int] = []
        while len(expected) < message.max_tokens:
            is_short = len(expected) < message.params.min_tokens
            forbidden = message.stop_token_ids if is_short else ()
            token = self.contents.sampled(node, message.child, forbidden)
            expected.append(token)
            node = self.contents.child(node, token)
            if token in message.stop_token_ids and not is_short:
                return CompletionState(message, expected, "stop")
        return CompletionState(message, expected, "length")

    def _take(self, output: EngineOutput) -> None:
        completion = self.completions[output.request_id]
        if output.error is not None:
            self._check_error(completion, output)
            return
        assert completion.reason != "error" or not output.token_ids
        completion.emitted += output.token_ids
        assert completion.emitted == completion.expected[: len(completion.emitted)], (
            f"{output.request_id} is wrong"
        )
        self._check_logprobs(completion, output)
        num_cached = output.num_cached_tokens
        assert num_cached < len(completion.message.token_ids)
        assert not (num_cached and completion.message.params.prompt_logprobs)
        self.counts["hits"] += bool(num_cached)
        if output.finish_reason is not None:
            self._check_end(completion, output)

    def _check_error(self, completion: CompletionState, output: EngineOutput) -> None:
        code = output.error.code if output.error else ""
        if code == "out_of_capacity":
            request = Request(completion.message, len(self.kv.specs))
            assert self.kv.blocks_to_finish(request) > self.kv.pool.num_usable
        elif code == "overloaded":
            assert self.scene.max_queued < 10_000
        else:
            assert code in completion.may_fail, f"{output.request_id}: {output.error}"
        self.counts[code] += 1
        self.missed_turns.clear()
        del self.completions[output.request_id]

    def _check_logprobs(self, completion: CompletionState, output: EngineOutput) -> None:
        for entry in output.prompt_logprobs or []:
            position = len(completion.logprobs) + 1
            assert entry.token_ids == [completion.message.token_ids[position]]
            completion.logprobs.append(entry.logprobs[0])

    def _check_end(self, completion: CompletionState, output: EngineOutput) -> None:
        message = completion.message
        assert completion.emitted == completion.expected
        assert output.finish_reason == completion.reason
        last = completion.emitted[-1]
        is_named = completion.reason == "stop" and last in message.params.stop_token_ids
        assert output.stop_reason == (last if is_named else None)
        if message.params.prompt_logprobs is not None:
            assert len(completion.logprobs) == len(message.token_ids) - 1
        if message.params.structured_outputs is not None:
            assert self.grammars.accepted.get(message.request_id, []) == completion.emitted[:-1]
        self.counts["ends"] += 1
        del self.completions[output.request_id]

    def _end_grammar(self, name: str, has_failed: bool) -> None:
        error = GrammarError("it has no end") if has_failed else None
        self.grammars.ready.append((name, error))
        if has_failed:
            self.missed_turns.clear()
        if has_failed and name in self.completions:
            self.completions[name].may_fail.add("invalid_grammar")

    def _watch(self, has_moved: bool) -> None:
        """See that something happens soon; what a store could delay, only until its time is up."""
        self.num_idle = 0 if has_moved else self.num_idle + 1
        most = PATIENCE + self.scene.num_stages - 1  # each of them has to complete
        if self.transfers is not None:
            most *= 5
            if (
                self.num_idle > 2 * PATIENCE + self.scene.num_stages
            ):  # a store that responds at all has done so
                self.pass_time(self.scene.store_timeout_s)
        assert self.num_idle < most, f"work is waiting and nothing happens: {self.describe()}"
