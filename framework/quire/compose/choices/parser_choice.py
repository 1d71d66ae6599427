"""Selection of the tool-call parser and of the reasoning parser: by name, or by the model."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.compose.choices.choosing import AUTO, choose_optional, find_offer
from quire.compose.choices.parser_file import choose_file, is_file, of_tokenizer_config
from quire.compose.composition import Choice, Rejection
from quire.errors import PluginLoadError, UnknownNameError
from quire.plugins.registry import Entry, Registry, is_suffix

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ParsedModel:
    """What `auto` knows of the model whose completions are parsed.

    Attributes:
        architecture: Architecture of the model.
        chat_template: Text of its chat template; empty if it has none.
        tokenizer_config: Content of its tokenizer_config.json.
    """

    architecture: str
    chat_template: str
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)


def choose_parser(registry: Registry[Any], wanted: str, model: ParsedModel) -> Choice | None:
    """Choose a parser: that of a file, or the one with a name.

    Of those for the model `auto` takes the one of the highest priority, and of several the most
    specific: the one with the most markers in the chat template, an architecture counting as one.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's; or a file
            or the checkpoint defines no parser.
    """
    if is_file(registry, wanted):
        return choose_file(registry, wanted)
    if wanted in registry and wanted.startswith("."):
        raise UnknownNameError(f"{wanted!r} is the suffix of files; name a file, ./NAME{wanted}")
    return _choose_named(registry, wanted, model)


def _choose_named(registry: Registry[Any], wanted: str, model: ParsedModel) -> Choice | None:
    """Choose a parser by its name, or the best one for the model.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's; or the
            checkpoint does not describe it.
    """
    if wanted != AUTO:
        choice = choose_optional(registry, wanted)
        return choice and of_tokenizer_config(registry, choice, model.tokenizer_config)
    matches, rejected = [], []
    for entry, unusable in _candidates(registry):
        reason = unusable or _mismatch(entry, model)
        if reason is None:
            matches.append(entry)
        else:
            rejected.append(Rejection(entry.name, reason))
    if not matches:
        return None
    best = max(matches, key=lambda entry: _rank(entry, model))
    others = [entry for entry in matches if entry is not best]
    rejected += [Rejection(each.name, _outranked(each, best, model)) for each in others]
    equals = [each.name for each in others if _rank(each, model) == _rank(best, model)]
    choice = Choice(registry.kind.title, best, _match(best, model, equals), tuple(rejected))
    try:
        return of_tokenizer_config(registry, choice, model.tokenizer_config)
    except PluginLoadError as error:
        logger.warning("there is no %s for this model: %s", registry.kind.title, error)
        return None


def _candidates(registry: Registry[Any]) -> Iterator[tuple[Entry, str | None]]:
    """Yield each parser by one name, and why it cannot be used with any model; no makers of files.

    Further names, by which only users choose, declare nothing for `auto`.
    """
    known = {entry.reference for entry in registry.offers() if _is_for_auto(entry)}
    for name in registry:
        entry, reason = find_offer(registry, name)
        is_further_name = entry.reference in known and not _is_for_auto(entry)
        if not (is_further_name or is_suffix(name)):
            yield entry, reason


def _is_for_auto(entry: Entry) -> bool:
    """Whether a parser says for which models `auto` may choose it."""
    capabilities = entry.capabilities
    is_described = capabilities.tokenizer_config_key is not None
    return is_described or bool(_marker_sets(entry) or capabilities.architectures)


def _rank(entry: Entry, model: ParsedModel) -> tuple[bool, int, int]:
    """Return the rank of a parser for the model: its priority, and how much it asks of a model.

    Parsers of families come before what a checkpoint describes.
    """
    capabilities = entry.capabilities
    num_conditions = len(_markers(entry, model) or ()) + bool(capabilities.architectures)
    is_of_family = capabilities.tokenizer_config_key is None
    return is_of_family, capabilities.priority, num_conditions


def _outranked(entry: Entry, best: Entry, model: ParsedModel) -> str:
    """Return why another parser is preferred to one that is for the model as well."""
    rank, best_rank = _rank(entry, model), _rank(best, model)
    if rank == best_rank:
        return f"{best.name} ranks the same, and its name is first"
    if rank[:-1] == best_rank[:-1]:
        return f"{best.name} is more specific: more of its conditions are met"
    return f"{best.name} has priority"


def _marker_sets(entry: Entry) -> list[tuple[str, ...]]:
    """Return the sets of markers of which a chat template must have one."""
    capabilities = entry.capabilities
    sets = (capabilities.template_markers, *capabilities.alternative_markers)
    return [each for each in sets if each]


def _markers(entry: Entry, model: ParsedModel) -> tuple[str, ...] | None:
    """Return the largest set of markers that the chat template has wholly; None if it has none."""
    sets = _marker_sets(entry) or [()]
    found = [each for each in sets if all(marker in model.chat_template for marker in each)]
    return max(found, key=len, default=None)


def _mismatch(entry: Entry, model: ParsedModel) -> str | None:
    """Return why a parser is not for the model; None if it is."""
    capabilities, all_markers = entry.capabilities, _marker_sets(entry)
    architectures, key = capabilities.architectures, capabilities.tokenizer_config_key
    if key is not None and model.tokenizer_config.get(key) is None:
        return f"the checkpoint's tokenizer_config.json has no {key}"
    if not _is_for_auto(entry):
        return "it declares no markers for auto"
    if _markers(entry, model) is None:
        missing = (marker for marker in all_markers[0] if marker not in model.chat_template)
        return f"the chat template has no {next(missing)}"
    for marker in capabilities.excluded_markers:
        if marker in model.chat_template:
            return f"the chat template has {marker}"
    if architectures and model.architecture not in architectures:
        return f"it is for {' and '.join(architectures)}"
    return None


def _match(entry: Entry, model: ParsedModel, equals: Sequence[str]) -> str:
    """Return why a parser is for the model, and which others of its rank are."""
    reasons = []
    if key := entry.capabilities.tokenizer_config_key:
        reasons.append(f"the checkpoint's tokenizer_config.json has {key}")
    if markers := _markers(entry, model):
        reasons.append(f"the chat template has {' '.join(markers)}")
    if entry.capabilities.architectures:
        reasons.append(f"the model is a {model.architecture}")
    also = f"; {', '.join(equals)} would do as well, choose one by name" if equals else ""
    return f"{AUTO}: {' and '.join(reasons)}{also}"
