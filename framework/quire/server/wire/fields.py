"""What becomes of each field of a body that has no place in its struct.

A field that a sampler declares goes to the sampler. A field that would change the answer and that
nobody here can honour is refused by name, unless it is neutral. What OpenAI's clients send about
themselves is taken in silence. Anything else is ignored, and a response header says so.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend

IGNORED_HEADER = "x-quire-ignored-fields"

SILENT = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "moderation",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "verbosity",
        "prediction", "request_id", "stream_interval",
    }
)  # fmt: skip

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "echo": (False,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logprob_token_ids": (),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "documents": ([],),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "return_token_ids": (False,),
    "functions": ([],),
    "function_call": (),
    "vllm_xargs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
_WAYS_OUT = {
    "functions": "; send tools",
    "function_call": "; send tool_choice",
    "max_completion_tokens": "; send max_tokens",
    "best_of": "; send n",
    "vllm_xargs": "; send a sampler's fields as fields of the body",
    "guided_json": "; send structured_outputs or response_format",
    "guided_regex": "; send structured_outputs",
    "guided_choice": "; send structured_outputs",
    "guided_grammar": "; send structured_outputs",
}
_MAX_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Extras:
    """The fields of a body that its struct does not have."""

    for_samplers: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def headers(self) -> dict[str, str]:
        """Return the header that says what was ignored, if anything was."""
        return {IGNORED_HEADER: ",".join(_shown(self.ignored))} if self.ignored else {}


def sampler_fields(frontend: AsyncFrontend) -> frozenset[str]:
    """Return the fields that sampler plugins of this engine add to a request."""
    return frozenset(found.name for found in frontend.intake.extra_fields)


def sort_fields(
    raw: dict[str, Any], kind: type[msgspec.Struct], declared: Collection[str]
) -> Extras:
    """Decide on each field that `kind` does not have.

    Args:
        raw: The body, as it was written.
        kind: The struct that takes its own fields.
        declared: Fields that the sampler steps of this engine read.

    Raises:
        InvalidRequestError: A field asks for what cannot be done here; `param` names it.
    """
    known = {info.encode_name for info in msgspec.structs.fields(kind)}
    for_samplers: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in raw.items():
        if name in known or value is None:
            continue
        if name in declared:
            for_samplers[name] = value
        elif name in NEUTRAL:
            _check_neutral(name, value)
        elif name not in SILENT:
            ignored.append(name)
    return Extras(for_samplers, tuple(ignored))


def check_known(value: Any, kind: type[msgspec.Struct], param: str) -> None:
    """Check that an object has no field that its struct lacks.

    Raises:
        InvalidRequestError: It has one, and to ignore it would change what was asked for.
    """
    known = {info.encode_name for info in msgspec.structs.fields(kind)}
    for name in value if isinstance(value, dict) else ():
        if name not in known:
            listed = ", ".join(sorted(known))
            message = f"{param} has no field {name[:100]!r} (known: {listed})"
            raise InvalidRequestError(message, param=param)


def _check_neutral(name: str, value: Any) -> None:
    is_truth = isinstance(value, bool)
    if any(value == neutral and is_truth == isinstance(neutral, bool) for neutral in NEUTRAL[name]):
        return
    way_out = _WAYS_OUT.get(name, "; leave it out, or load a plugin that serves it")
    raise InvalidRequestError(f"{name} is not served by this engine{way_out}", param=name)


def _shown(names: Iterable[str]) -> list[str]:
    """Names as a header may carry them: a client's text must not write headers of ours."""
    return [re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:64] for name in names][:_MAX_SHOWN]
