"""Events chosen by a random generator, for trials that go a long way."""

import random
from collections import Counter

from engine_trial import EngineTrial
from trial_requests import TrialRequest
from trial_scene import MIXES, Scene

STEPS_A_TRIAL = 300


def random_scene(rng: random.Random, num_stages: int | None = None) -> Scene:
    """Choose an engine, of any number of stages if none is given."""
    return Scene(
        mix=rng.randrange(len(MIXES)),
        block_size=rng.choice((1, 2, 4)),
        num_blocks=rng.choice((8, 12, 20, 20, 40)),
        async_scheduling=rng.random() < 0.5,
        num_stages=rng.choice((1, 1, 2, 3, 4)) if num_stages is None else num_stages,
        has_cache=rng.random() < 0.8,
        has_store=rng.random() < 0.5,
        policy=rng.choice((0, 0, 1, 1, 2)),
        is_chunked=rng.random() < 0.8,
        budget=rng.choice((1, 3, 9, 30)),
        max_seqs=rng.choice((1, 4, 6, 6)),
        max_partial=rng.choice((1, 2, 4)),
        max_long=rng.choice((1, 2)),
        long_threshold=rng.choice((0, 6)),
        max_queued=rng.choice((3, 10_000, 10_000)),
        store_timeout_s=rng.choice((0.0, 1000.0, 1000.0)),
    )


def random_request(rng: random.Random) -> TrialRequest:
    """Choose a request."""
    return TrialRequest(
        family=rng.randrange(2),
        length=rng.randrange(rng.choice((6, 25))),
        tail=tuple(rng.randint(1, 3) for _ in range(rng.choice((0, 0, 1, 2, 5)))),
        max_tokens=rng.choice((1, 3, 8, 12, 30)),
        n=rng.choice((1, 1, 1, 3)),
        adapter=rng.choice((0, 0, 1, 2, 3)),
        salt=rng.choice((0, 0, 0, 1, 2)),
        priority=rng.randint(-1, 1),
        min_tokens=rng.choice((0, 0, 3)),
        has_other_stop=rng.random() < 0.2,
        has_prompt_logprobs=rng.random() < 0.15,
        has_timeout=rng.random() < 0.3,
        has_grammar=rng.random() < 0.15,
        is_cursed=rng.random() < 0.05,
        has_old_name=rng.random() < 0.2,
    )


def random_event(rng: random.Random, trial: EngineTrial) -> None:
    """Let something happen; mostly the engine steps."""
    kind = rng.random()
    if kind < 0.6:
        trial.step()
    elif kind < 0.8:
        trial.add(random_request(rng))
    elif kind < 0.85:
        trial.abort(rng.randrange(100))
    elif kind < 0.9:
        trial.draft(rng.randrange(100), rng.randrange(4), rng.randrange(3))
    elif kind < 0.93:
        trial.ready_grammars(rng.random() < 0.2)
    elif kind < 0.94:
        trial.fail_grammar(rng.randrange(100))
    elif kind < 0.95:
        trial.fail_in_worker(rng.randrange(100))
    elif kind < 0.953:
        trial.interrupt(rng.choice(("execute", "sample", "collect")))
    elif kind < 0.956:
        trial.step_much_later()
    elif kind < 0.965:
        trial.reset()
    elif kind < 0.97:
        trial.swap_adapter(rng.randrange(1, 4))
    elif kind < 0.975:
        trial.accept_at_most(rng.choice((0, 1, 2, 99)))
    elif kind < 0.998:
        trial.set_mood(rng.choice(("latency", "is_pending", "fails")), rng.randrange(12))
    else:
        trial.set_mood(rng.choice(("raising", "is_dead")), rng.randrange(12))


def run_trial(
    seed: int, num_events: int = STEPS_A_TRIAL, num_stages: int | None = None
) -> Counter[str]:
    """Run one trial, to its end and the check that everything is as new.

    Raises:
        AssertionError: Something does not hold; the seed is named.
    """
    rng = random.Random(seed)
    trial = EngineTrial(random_scene(rng, num_stages))
    try:
        for _ in range(num_events):
            random_event(rng, trial)
            trial.check()
        trial.drain()
    except Exception as error:
        raise AssertionError(f"trial {seed}, {trial.scene}: {error}") from error
    trial.counts["events"] = num_events
    trial.counts["preemptions"] = trial.scheduler.num_preemptions
    trial.counts["evictions"] = trial.kv.pool.num_evictions
    if trial.transfers is not None:
        trial.counts["store hits"] = trial.transfers.num_hits
    return trial.counts
