"""Config of the text model inside of a model with media towers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues
from quire_models.media_models.media_table import MediaModel
from quire_models.media_models.text_types import TEXT_TYPES, TextType
from quire_models.readers.missing_values import with_missing_values

if TYPE_CHECKING:
    from quire_models.decoder.options.decoder_config import DecoderConfig

TEXT = "text_config"
TIED = "tie_word_embeddings"
OUTER_FIRST = ("quantization_config", "dtype", "torch_dtype")  # also in the text model's, if there


def text_config(model: MediaModel, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model's config as a config.json of its own, with all defaults.

    Raises:
        UnsupportedModelError: There is none, or it is of an unknown type.
    """
    outer = ConfigValues(config, model.architecture)
    given = outer.mapping(TEXT)
    if not given:
        if not model.is_flat:
            raise UnsupportedModelError(
                f"{model.architecture}: config.json has no {TEXT}, which describes the text model"
            )
        given = {key: value for key, value in config.items() if key != "model_type"}
    kind = ConfigValues(given, model.architecture, f"{TEXT}.").text("model_type", model.text_type)
    found = text_type(model, kind)
    text = {**with_missing_values(found.family, {**found.defaults, **given}), "model_type": kind}
    text |= {key: config[key] for key in OUTER_FIRST if config.get(key) is not None}
    tied = _tied(model, outer, ConfigValues(given, model.architecture, f"{TEXT}."))
    text.pop(TIED, None)
    if tied is not None:
        text[TIED] = tied
    return text | {"architectures": [model.architecture]}


def read_text_decoder(
    model: MediaModel, config: Mapping[str, Any], read: Callable[[ConfigValues], DecoderConfig]
) -> DecoderConfig:
    """Return the decoder's options, from what `text_config` returns and the text model's reader."""
    from quire_models.decoder.options.config_reading import with_renamed_rope

    kind = text_type(model, config["model_type"])
    values = ConfigValues(config, model.architecture, prefix=f"{TEXT}.")
    if kind.has_three_positions:  # those of text are equal: mrope is plain
        values = with_renamed_rope(values, "mrope", "default")
    decoder = read(values)
    return replace(
        decoder,
        weight_prefixes=tuple(model.prefixes.items()),
        ignored_weights=(*decoder.ignored_weights, *map(_any_below, model.left_out)),
    )


def text_type(model: MediaModel, name: str) -> TextType:
    """Return the type of a text model.

    Raises:
        UnsupportedModelError: It is unknown.
    """
    if name not in TEXT_TYPES:
        raise UnsupportedModelError(
            f"{model.architecture}: {TEXT}.model_type {name!r} is not supported; known are "
            f"{', '.join(sorted(TEXT_TYPES))}"
        )
    return TEXT_TYPES[name]


def _tied(model: MediaModel, outer: ConfigValues, inner: ConfigValues) -> bool | None:
    """Return whether the LM head is tied; None: as the text model's family has it by default."""
    found = [values.flag(TIED) for values in (outer, inner) if values.has(TIED)]
    if not found:
        return None
    return any(found) if model.ties_by_either else found[0]


def _any_below(prefix: str) -> str:
    return re.escape(prefix) + ".*"
