"""Options of quire as arguments of a Serve application: YAML values, or text after `serve run`."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from quire.cli.options import all_options
from quire.cli.setting_values import read_settings
from quire.config import Settings
from quire.errors import SettingsError
from quire.plugins.registry import did_you_mean

ORIGIN = "arguments of the Serve application"


def read_arguments(arguments: Mapping[str, Any]) -> Settings:
    """Return the settings: the arguments, then the environment, then the defaults.

    Args:
        arguments: Values by the name of the option, with underscores or hyphens.

    Raises:
        SettingsError: An option does not exist, or its value is invalid.
    """
    options = {option.name: option for option in all_options()}
    values = {}
    for key, value in arguments.items():
        name = key.replace("-", "_")
        if name not in options:
            hint = did_you_mean(name, options)
            raise SettingsError(f"{ORIGIN}: there is no option {key!r}{hint}")
        values[name] = options[name].parse(value, ORIGIN)
    settings = read_settings(Namespace(), **values)
    if settings.parallel.data_parallel_size > 1:
        raise SettingsError(
            f"{ORIGIN}: data_parallel_size is {settings.parallel.data_parallel_size}; under Ray "
            "Serve the number of replicas is num_replicas or autoscaling_config of the deployment "
            "Engine"
        )
    return settings
