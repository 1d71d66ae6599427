"""Description of a quantized checkpoint's weights by the method that reads them, without torch."""

from collections.abc import Callable, Iterable
from typing import Any

from quire.compose.composition import Choice
from quire.errors import PluginLoadError, QuireError
from quire.interfaces.model import ModelDescription
from quire.interfaces.weight_codes import WeightCodes
from quire.plugins.registry import import_reference


def describe_codes(
    prepared: Choice | None, description: ModelDescription
) -> tuple[WeightCodes, ...] | None:
    """Check the options of a quantized checkpoint, and return the codes that they stand for.

    Args:
        prepared: Method that reads the checkpoint's weights; None: they are not quantized.
        description: Description of the model, with the config.

    Returns:
        The codes of each group of layers; None: the method does not describe them.

    Raises:
        QuireError: The method does not support the options, or they are invalid.
    """
    if prepared is None or (reference := prepared.entry.capabilities.describe) is None:
        return None
    what = f"the description of a config by {prepared}"
    describe: Callable[..., Iterable[Any]]
    describe = import_reference(reference, what)  # type: ignore[assignment]
    try:
        found = tuple(describe(description.config["quantization_config"]))
    except QuireError:
        raise
    except Exception as error:
        raise PluginLoadError(
            f"{what} failed on quantization_config of config.json: {type(error).__name__}: {error}"
        ) from error
    for each in found:
        if not isinstance(each, WeightCodes):
            raise PluginLoadError(f"{what} returned a {type(each).__name__}, no WeightCodes")
    return found
