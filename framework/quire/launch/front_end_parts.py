"""Parts of an engine beside its core, loaded before the core starts, so that a broken one shows."""

from collections.abc import Mapping
from dataclasses import dataclass

from quire.compose.choices.lora_choice import load_sources
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.intake.constraint_checks import CheckGrammar
from quire.interfaces.lora import LoRASource
from quire.launch.adapters import find_adapters
from quire.launch.composing import Composed
from quire.launch.grammar_setup import make_grammar_check
from quire.launch.parsers import load_parsers
from quire.messages import AdapterRef


@dataclass(frozen=True, slots=True)
class FrontEndParts:
    """Parsers, checks and adapters of a front end."""

    completion_parsers: CompletionParsers
    check_grammar: CheckGrammar | None
    lora_sources: Mapping[str, LoRASource]
    adapters: Mapping[str, AdapterRef]

    @classmethod
    def load(
        cls, composed: Composed, adapters: Mapping[str, AdapterRef] | None = None
    ) -> "FrontEndParts":
        """Load the parts.

        Args:
            composed: Composition of the engine.
            adapters: Adapters, if they are known; None: they are looked for.

        Raises:
            QuireError: A part is broken, or an adapter cannot be found.
        """
        composition, plugins = composed.composition, composed.plugins
        parsers = load_parsers(composition, plugins.registries, composed.tokenizer)
        check_grammar = make_grammar_check(composition, plugins)
        sources = load_sources(composed.settings.lora, composition, plugins.registries)
        if adapters is None:
            adapters = find_adapters(composed.settings, composition, sources)
        return cls(parsers, check_grammar, sources, adapters)
