"""Handling of body fields that the struct of a request does not declare.

A field that a sampler plugin declares is passed to the samplers. A field that would change the
completion and is not supported is refused by name, unless its value is neutral. Fields that
OpenAI's clients send about themselves are ignored silently. Any other field is ignored, and a
response header names it.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quire.errors import InvalidRequestError

IGNORED_HEADER = "x-quire-ignored-fields"

SILENTLY_IGNORED = frozenset(
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
_HINTS = {
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
    """Body fields that the struct of the request does not declare."""

    for_samplers: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def headers(self) -> dict[str, str]:
        """Return the header that names the ignored fields, if there are any."""
        return {IGNORED_HEADER: ",".join(_shown(self.ignored))} if self.ignored else {}


def sort_fields(undeclared: Mapping[str, Any], of_samplers: Collection[str]) -> Extras:
    """Classify the body fields that the struct of the request does not declare.

    Args:
        undeclared: Fields with their values.
        of_samplers: Names of the fields that the samplers of this engine add.

    Raises:
        InvalidRequestError: A field asks for something unsupported; `param` names it.
    """
    for_samplers: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in undeclared.items():
        if value is None:
            continue
        if name in of_samplers:
            for_samplers[name] = value
        elif name in NEUTRAL:
            _check_neutral(name, value)
        elif name not in SILENTLY_IGNORED:
            ignored.append(name)
    return Extras(for_samplers, tuple(ignored))


def check_known(value: Mapping[str, Any], kind: type[msgspec.Struct], param: str) -> None:
    """Check that an object has only fields that its struct declares.

    Raises:
        InvalidRequestError: It has another one; ignoring it would change the request.
    """
    for name in value:
        if name not in kind.__struct_fields__:
            listed = ", ".join(sorted(kind.__struct_fields__))
            message = f"{param} has no field {name[:100]!r} (known: {listed})"
            raise InvalidRequestError(message, param=param)


def _check_neutral(name: str, value: Any) -> None:
    is_bool = isinstance(value, bool)
    if any(value == neutral and is_bool == isinstance(neutral, bool) for neutral in NEUTRAL[name]):
        return
    hint = _HINTS.get(name, "; leave it out, or load a plugin that supports it")
    raise InvalidRequestError(f"{name} is not supported by this engine{hint}", param=name)


def _shown(names: Iterable[str]) -> list[str]:
    """Return names that are safe in a header: a client must not be able to inject headers."""
    return [re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:64] for name in names][:_MAX_SHOWN]
