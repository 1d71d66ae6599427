"""Handling of body fields that the struct of a request does not declare.

A field that a sampler plugin declares is passed to the samplers. A field that would change the
completion and is not supported is refused by name, unless its value is neutral. Fields that
OpenAI's clients send about themselves are ignored silently. A field of an installed sampler that is
not in use, and one that is nearly a field that exists, are refused. Any other field is ignored, and
a response header names it.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

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
    "suffix": ("",),
    "echo": (False,),
    "prompt_embeds": (),
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
    "watermarking": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "regex": (),
    "ebnf": (),
    "json_schema": (),
    "min_new_tokens": (0,),
    "max_new_tokens": (),
    "sampling_seed": (),
    "no_stop_trim": (False,),
    "beam_width": (1,),
    "num_beams": (1,),
    "do_sample": (True,),
    "repeat_penalty": (1,),
    "cfg_scale": (1,),
    "mirostat": (0,),
    "no_repeat_ngram_size": (0,),
}
_HINTS = {
    "functions": "; send tools",
    "function_call": "; send tool_choice",
    "max_completion_tokens": "; send max_tokens",
    "vllm_xargs": "; send a sampler's fields as fields of the body",
    "watermarking": "; send watermark: true, with its fields",
    "guided_json": '; send structured_outputs: {"json": ...}, or response_format',
    "guided_regex": '; send structured_outputs: {"regex": ...}',
    "guided_choice": '; send structured_outputs: {"choice": [...]}',
    "guided_grammar": '; send structured_outputs: {"grammar": ...}',
    "guided_decoding_backend": '; send structured_outputs with "backend"',
    "guided_whitespace_pattern": "; the backend decides which blanks JSON may have",
    "custom_logit_processor": "; send logits_processors: the names of a plugin's steps",
    "custom_params": "; send a sampler's fields as fields of the body",
    "regex": '; send structured_outputs: {"regex": ...}',
    "ebnf": '; send structured_outputs: {"grammar": ...}',
    "json_schema": '; send structured_outputs: {"json": ...}',
    "min_new_tokens": "; send min_tokens",
    "cfg_scale": "; send guidance_scale",
    "max_new_tokens": "; send max_tokens",
    "sampling_seed": "; send seed",
    "no_stop_trim": "; send include_stop_str_in_output: true",
    "beam_width": "; send use_beam_search: true, with n beams",
    "num_beams": "; send use_beam_search: true, with n beams",
    "do_sample": "; send temperature: 0",
    "repeat_penalty": "; send repetition_penalty",
    "mirostat": "; send mirostat_mode, with the same number",
    "no_repeat_ngram_size": "; send dry_multiplier, which penalizes repetitions of any length",
}
_MAX_SHOWN = 16
_MAX_NAME = 64
_NEAR = 0.87  # similarity of two names of which one is a misspelling


@dataclass(frozen=True, slots=True)
class Extras:
    """Body fields that the struct of the request does not declare."""

    for_samplers: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def headers(self) -> dict[str, str]:
        """Return the header that names the ignored fields, if there are any."""
        return {IGNORED_HEADER: ",".join(_shown(self.ignored))} if self.ignored else {}


def sort_fields(
    undeclared: Mapping[str, Any],
    of_samplers: Collection[str],
    offered: Mapping[str, str] = MappingProxyType({}),
    declared: Collection[str] = (),
) -> Extras:
    """Classify the body fields that the struct of the request does not declare.

    Args:
        undeclared: Fields with their values.
        of_samplers: Names of the fields that the samplers of this engine add.
        offered: Fields of installed samplers that are not in use -> how to use one.
        declared: Fields that the struct declares.

    Raises:
        InvalidRequestError: A field asks for something unsupported, or is probably a misspelt
            name of another one; `param` names it.
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
        elif name in offered:
            raise InvalidRequestError(
                f"no sampler in use reads the field {name}; {offered[name]}", param=name
            )
        elif name not in SILENTLY_IGNORED:
            _check_spelling(name, (*declared, *of_samplers, *offered))
            ignored.append(name)
    return Extras(for_samplers, tuple(ignored))


def check_known(value: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Check that an object has only known fields.

    Raises:
        InvalidRequestError: It has another one; ignoring it would change the request.
    """
    for name in value:
        if name not in known:
            message = f"{what} has no field {name[:100]!r} (known: {', '.join(sorted(known))})"
            raise InvalidRequestError(message, param=what.partition(" ")[0])


def _check_neutral(name: str, value: Any) -> None:
    is_bool = isinstance(value, bool)
    if any(value == neutral and is_bool == isinstance(neutral, bool) for neutral in NEUTRAL[name]):
        return
    hint = _HINTS.get(name, "; leave it out, or load a plugin that supports it")
    raise InvalidRequestError(f"{name} is not supported by this engine{hint}", param=name)


def _check_spelling(name: str, known: Collection[str]) -> None:
    """Refuse a field that is nearly another one: ignoring it would change the completion."""
    near = get_close_matches(name[:_MAX_NAME], known, 1, _NEAR)
    if near:
        raise InvalidRequestError(
            f"there is no field {name[:_MAX_NAME]!r}; did you mean {near[0]!r}?",
            param=name[:_MAX_NAME],
        )


def _shown(names: Iterable[str]) -> list[str]:
    """Return names that are safe in a header: a client must not be able to inject headers."""
    return [re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:64] for name in names][:_MAX_SHOWN]
