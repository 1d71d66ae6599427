"""Registration of the tool-call parsers of this package. Imports nothing heavy."""

from dataclasses import replace

from quire import Registrar, hookimpl
from quire.interfaces.tool_parsing import ToolParser
from quire_tool_parsers.family_table import capabilities_of, read_table

FAMILIES = "quire_tool_parsers.families"


@hookimpl
def register_tool_parsers(registry: Registrar[type[ToolParser]]) -> None:
    """Register a parser for each family of the table, and for each further name of one.

    `auto` chooses a family by its first name.
    """
    for name, form in read_table().items():
        capabilities = capabilities_of(form)
        registry.add(name, f"{FAMILIES}:{name}", capabilities=capabilities)
        for alias in form.aliases:
            other = replace(capabilities, template_markers=())
            registry.add(alias, f"{FAMILIES}:{name}", capabilities=other)
