"""Handling of body fields that the struct of a request does not declare.

A field that a sampler plugin declares is passed to the samplers. A field that would change the
completion and is not supported is refused by name, with the way out, unless its value is neutral;
so is a field of an installed sampler that is not in use. Any other field does not exist.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.errors import InvalidRequestError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.wire.bodies import Body, S
from quire.server.wire.common_fields import SampledBody
from quire.server.wire.protocol import AcceptedFields, ChatBody, CompletionBody

ACCEPTED = frozenset(AcceptedFields.__struct_fields__) - {*SampledBody.__struct_fields__}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A known field that is not supported.

    Attributes:
        way_out: What to do instead.
        neutral: Values that ask for nothing, and are accepted.
    """

    way_out: str = "leave it out, or load a plugin that supports it"
    neutral: tuple[Any, ...] = ()


_SAMPLER_FIELD = "send a sampler's fields as fields of the body"
_JSON = 'send structured_outputs: {"json": ...}'
_GRAMMAR = 'send structured_outputs: {"grammar": ...}'
_REGEX = 'send structured_outputs: {"regex": ...}'
_BEAMS = "send use_beam_search: true, with n beams"
_TEXT_ONLY = "this server generates text; leave it out"
_NO_MEDIA = "this server reads text only; leave it out"

REFUSED: dict[str, Refusal] = {
    # OpenAI's
    "suffix": Refusal("write the text between both into the prompt", ("",)),
    "echo": Refusal("only /v1/completions has it", (False,)),
    "modalities": Refusal(_TEXT_ONLY, (["text"],)),
    "audio": Refusal(_TEXT_ONLY),
    "web_search_options": Refusal("offer a tool that searches"),
    "moderation": Refusal("completions are not moderated; leave it out"),
    "functions": Refusal("send tools", ([],)),
    "function_call": Refusal("send tool_choice"),
    # vLLM's
    "prompt_embeds": Refusal("send prompt, as text or token ids"),
    "chat_template": Refusal("start the server with --chat-template"),
    "documents": Refusal("write them into a message", ([],)),
    "mm_processor_kwargs": Refusal(_NO_MEDIA, ({},)),
    "media_io_kwargs": Refusal(_NO_MEDIA, ({},)),
    "mm_payload": Refusal(_NO_MEDIA, ({},)),
    "return_mm_kwargs": Refusal(_NO_MEDIA, (True, False)),
    "kv_transfer_params": Refusal("KV caches are not passed on by requests", ({},)),
    "ec_transfer_params": Refusal("encoder caches are not passed on by requests", ({},)),
    "return_prompt_text": Refusal("send return_token_ids, and decode them", (False,)),
    "return_token_offsets": Refusal(neutral=(False,)),
    "routed_experts_prompt_start": Refusal(neutral=(0,)),
    "vllm_xargs": Refusal(_SAMPLER_FIELD, ({},)),
    "watermarking": Refusal("send watermark: true, with its fields", (False,)),
    "guided_json": Refusal(f"{_JSON}, or response_format"),
    "guided_regex": Refusal(_REGEX),
    "guided_choice": Refusal('send structured_outputs: {"choice": [...]}'),
    "guided_grammar": Refusal(_GRAMMAR),
    "guided_json_object": Refusal('send response_format: {"type": "json_object"}', (False,)),
    "guided_decoding_backend": Refusal('send structured_outputs with "backend"'),
    "guided_whitespace_pattern": Refusal("the backend decides which blanks JSON may have"),
    # of other engines
    "custom_logit_processor": Refusal("send logits_processors: names that a plugin registers"),
    "custom_params": Refusal(_SAMPLER_FIELD, ({},)),
    "regex": Refusal(_REGEX),
    "ebnf": Refusal(_GRAMMAR),
    "json_schema": Refusal(_JSON),
    "min_new_tokens": Refusal("send min_tokens", (0,)),
    "max_new_tokens": Refusal("send max_tokens"),
    "sampling_seed": Refusal("send seed"),
    "no_stop_trim": Refusal("send include_stop_str_in_output: true", (False,)),
    "beam_width": Refusal(_BEAMS, (1,)),
    "num_beams": Refusal(_BEAMS, (1,)),
    "do_sample": Refusal("send temperature: 0", (True,)),
    "repeat_penalty": Refusal("send repetition_penalty", (1,)),
    "cfg_scale": Refusal("send guidance_scale", (1,)),
    "mirostat": Refusal("send mirostat_mode, with the same number", (0,)),
    "no_repeat_ngram_size": Refusal(
        "send dry_multiplier, which penalizes repetitions of any length", (0,)
    ),
}
OF_TEMPLATES = ("chat_template", "mm_processor_kwargs", "media_io_kwargs")
REFUSED_IN_TOKENIZE = {name: REFUSED[name] for name in OF_TEMPLATES}
_BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}


def sampler_values(
    body: Body[S],
    of_samplers: Collection[str],
    offered: Mapping[str, str],
    unknown: UnknownFields,
    refused: Mapping[str, Refusal],
) -> dict[str, Any]:
    """Return the fields of a body that go to samplers, and check those that do not exist.

    Args:
        body: Body of a request.
        of_samplers: Names of the fields that the samplers of this engine add.
        offered: Fields of installed samplers that are not in use -> how to use one.
        unknown: What happens to fields that do not exist.
        refused: Known fields of the route that are not supported.

    Raises:
        InvalidRequestError: A field asks for something unsupported; `param` names it.
        UnknownFieldError: A field does not exist.
    """
    values = {}
    for name in ACCEPTED.intersection(of_samplers, body.typed.__struct_fields__):
        if (value := getattr(body.typed, name)) is not None:  # a field of our own struct
            values[name] = value
    for name, value in body.undeclared.items():
        if value is None:
            continue
        if name in of_samplers:
            values[name] = value
        elif name in refused:
            _check_neutral(name, value, refused[name])
        elif name in offered:
            raise InvalidRequestError(
                f"no sampler in use reads the field {name}; {offered[name]}", param=name
            )
        else:
            known = (*body.typed.__struct_fields__, *of_samplers, *offered)
            unknown.handle(name, known, way_out=_elsewhere(name))
    check_objects(body, unknown)
    return values


def check_declared(
    body: Body[S], unknown: UnknownFields, refused: Mapping[str, Refusal] | None = None
) -> None:
    """Check that a body has only the fields of its struct; null asks for nothing.

    Args:
        body: Body of a request.
        unknown: What happens to fields that do not exist.
        refused: Known fields of the route that are not supported.

    Raises:
        InvalidRequestError: A field asks for something unsupported; `param` names it.
        UnknownFieldError: A field does not exist.
    """
    refused = refused or {}
    given = _set(body.undeclared)
    for name in refused.keys() & given:
        _check_neutral(name, body.undeclared[name], refused[name])
    unknown.check((n for n in given if n not in refused), body.typed.__struct_fields__)
    check_objects(body, unknown)


def check_objects(body: Body[S], unknown: UnknownFields) -> None:
    """Check the fields of objects within a body that have a struct of their own.

    Raises:
        UnknownFieldError: One of them does not exist.
    """
    for each in body.undeclared_of_objects:
        unknown.check(_set(each.given), each.known, each.where)


def _set(given: Mapping[str, Any]) -> list[str]:
    return [name for name, value in given.items() if value is not None]


def _check_neutral(name: str, value: Any, refusal: Refusal) -> None:
    is_bool = isinstance(value, bool)
    if any(
        value == neutral and is_bool == isinstance(neutral, bool) for neutral in refusal.neutral
    ):
        return
    raise InvalidRequestError(f"{name} is not supported; {refusal.way_out}", param=name)


def _elsewhere(name: str) -> str | None:
    """Return where the other kind of completions has the field, if it has."""
    for path, kind in _BODIES.items():
        if name in kind.__struct_fields__:
            return f"{path} has it"
    return None
