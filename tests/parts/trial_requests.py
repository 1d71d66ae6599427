"""Requests for trials, with few different tokens, adapters and salts, so that they collide."""

from dataclasses import dataclass

from checking_executor import CURSED
from kv_contents import EOS, OTHER_STOP
from trial_scene import TIMEOUT_S

from quire.messages import AdapterRef, EngineRequest
from quire.sampling_params import SamplingParams, StructuredOutputsParams

GRAMMAR = StructuredOutputsParams(choice=("yes", "no"))
ADAPTERS = (None, "one", "two", "three")
SALTS = (None, "mine", "yours")


@dataclass(frozen=True)
class TrialRequest:
    """Requests to add."""

    family: int = 0  # of prompts with a common prefix
    length: int = 5  # of that prefix
    tail: tuple[int, ...] = ()
    max_tokens: int = 4
    n: int = 1
    adapter: int = 0
    salt: int = 0
    priority: int = 0
    min_tokens: int = 0
    has_other_stop: bool = False
    has_prompt_logprobs: bool = False
    has_timeout: bool = False
    has_grammar: bool = False
    is_cursed: bool = False
    has_old_name: bool = False  # of a request that was aborted, and may still be in flight


def prompt_of(request: TrialRequest) -> list[int]:
    """Return the prompt of a trial request; those of one family begin alike."""
    prompt = [1 + (i * i + request.family * (i // 3)) % 3 for i in range(request.length)]
    prompt += [*request.tail, *([CURSED] if request.is_cursed else [])]
    return prompt or [1]


def message_of(
    request: TrialRequest, name: str, child: int, seed: int, version: int, now_s: float
) -> EngineRequest:
    """Return the message of a request.

    Args:
        request: Trial request.
        name: The request's id.
        child: Which of the n completions.
        seed: Tells the request from all others, also from those of the same id.
        version: Of the content under the adapter's name.
        now_s: When it arrives, on the monotonic clock.
    """
    adapter = ADAPTERS[request.adapter]
    stops = (OTHER_STOP,) if request.has_other_stop else ()
    reference = f"{adapter}-{version}"
    return EngineRequest(
        request_id=name,
        token_ids=prompt_of(request),
        params=SamplingParams(
            max_tokens=request.max_tokens,
            min_tokens=min(request.min_tokens, request.max_tokens),
            stop_token_ids=stops,
            prompt_logprobs=1 if request.has_prompt_logprobs else None,
            structured_outputs=GRAMMAR if request.has_grammar else None,
        ),
        max_tokens=request.max_tokens,
        seed=seed,
        child=child,
        stop_token_ids=(EOS, *stops),
        adapter=AdapterRef(adapter, adapter, reference) if adapter else None,
        priority=request.priority,
        cache_salt=SALTS[request.salt],
        arrival_s=now_s,
        timeout_s=TIMEOUT_S if request.has_timeout else None,
    )
