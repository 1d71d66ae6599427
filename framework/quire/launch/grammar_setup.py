"""Set-up of structured output: the grammar process, and the check of constraints at intake."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quire.compose.composition import Choice, Composition
from quire.config import PluginSettings
from quire.engine.grammar.grammar_host import GrammarHost
from quire.engine.grammar.grammar_pool import GrammarLimits
from quire.engine.grammar.grammars import NoGrammars
from quire.errors import GrammarError, PluginError
from quire.frontend.text.tokenizer import Tokenizer
from quire.frontend.text.vocabulary import read_vocabulary
from quire.interfaces.structured_output import Vocabulary
from quire.launch.composing import Composed
from quire.plugins.loading import Plugins
from quire.plugins.registry import Entry
from quire.sampling_params import StructuredOutputsParams


def make_grammars(composed: Composed) -> GrammarHost | NoGrammars:
    """Create the grammar host; its process starts with the first request that needs it."""
    settings, composition = composed.settings, composed.composition
    choice = composition.structured_output
    if choice is None:
        return NoGrammars()
    vocab_size = composition.description.vocab_size
    folder, tokenizer = composition.checkpoint.folder, composed.tokenizer
    return GrammarHost(
        lambda: _read_vocabulary(folder, tokenizer, vocab_size),
        backend=choice.name,
        plugins=_with_choice(settings.plugins, choice),
        max_rows=settings.scheduler.max_num_seqs,
        limits=GrammarLimits(timeout_s=settings.parts.grammar_timeout_s),
    )


def make_grammar_check(
    composition: Composition, plugins: Plugins
) -> Callable[[StructuredOutputsParams], None] | None:
    """Return a check that refuses constraints which a request's backend does not support.

    Returns:
        The check, or None if structured output is off.
    """
    choice = composition.structured_output
    if choice is None:
        return None
    default = plugins.registries.structured_output.load(choice.entry)

    def check(params: StructuredOutputsParams) -> None:
        try:
            registry = plugins.registries.structured_output
            backend = registry.get(params.backend) if params.backend else default
            entry = registry.entry(params.backend) if params.backend else choice.entry
        except PluginError as error:
            raise GrammarError(str(error), param="structured_outputs.backend") from error
        _check_constraint(params.constraint, entry)
        backend.check(params)

    return check


def _with_choice(settings: PluginSettings, choice: Choice) -> PluginSettings:
    """Return settings with which another process makes the same choice, if a name is contested."""
    preference = f"{choice.entry.kind.name}:{choice.name}={choice.entry.source.plugin}"
    return replace(settings, prefer=(*settings.prefer, preference))


def _check_constraint(constraint: str, backend: Entry) -> None:
    constraints = backend.capabilities.constraints
    if constraint not in constraints:
        raise GrammarError(
            f"the {backend.name} backend does not support the constraint {constraint!r}, only "
            f"{', '.join(sorted(constraints))}"
        )


def _read_vocabulary(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    from tokenizers import Tokenizer as FastTokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise GrammarError(f"grammars need a fast tokenizer, but {folder} has no tokenizer.json")
    return read_vocabulary(FastTokenizer.from_file(str(path)), tokenizer.eos_token_ids, vocab_size)
