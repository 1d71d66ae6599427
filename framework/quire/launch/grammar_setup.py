"""Set-up of structured output: the grammar process, and the check of constraints at intake."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from quire.compose.checkpoint import small_file_text
from quire.compose.composition import Choice, Composition
from quire.config import PluginSettings
from quire.engine.grammar.grammar_host import GrammarHost
from quire.engine.grammar.grammar_pool import GrammarLimits
from quire.engine.grammar.grammar_process import joint_refusal
from quire.engine.grammar.grammars import NoGrammars
from quire.errors import GrammarError, PluginError
from quire.frontend.text.tokenizer import Tokenizer
from quire.frontend.text.vocabulary import read_vocabulary
from quire.interfaces.structured_output import Vocabulary
from quire.launch.composing import Composed
from quire.plugins.loading import Plugins
from quire.plugins.registry import Entry
from quire.sampling_params import StructuredOutputsParams

WAYS_OUT = {
    "calls_in_text": "; leave out strict of functions and the format of custom tools, or force a "
    "call by tool_choice required",
}


def make_grammars(composed: Composed) -> GrammarHost | NoGrammars:
    """Create the grammar host; its process starts with the first request that needs it."""
    settings, composition = composed.settings, composed.composition
    choices = composition.structured_output
    if not choices:
        return NoGrammars()
    vocab_size = composition.description.vocab_size
    folder, tokenizer = composition.checkpoint.folder, composed.tokenizer
    return GrammarHost(
        lambda: _read_vocabulary(folder, tokenizer, vocab_size),
        backends=[choice.name for choice in choices],
        plugins=_with_choices(settings.plugins, choices),
        max_rows=settings.scheduler.max_num_seqs,
        limits=GrammarLimits(timeout_s=settings.parts.grammar_timeout_s),
    )


def make_grammar_check(
    composition: Composition, plugins: Plugins
) -> Callable[[StructuredOutputsParams], None] | None:
    """Return a check that refuses constraints which no backend of the request supports.

    Returns:
        The check, or None if structured output is off.
    """
    choices = composition.structured_output
    if not choices:
        return None
    registry = plugins.registries.structured_output
    default = [choice.entry for choice in choices]
    backends = {entry.name: registry.load(entry) for entry in default}

    def check(params: StructuredOutputsParams) -> None:
        entries = default
        if params.names_backend:
            try:
                entries = [registry.entry(str(params.backend))]
                backends.setdefault(entries[0].name, registry.load(entries[0]))
            except PluginError as error:
                raise GrammarError(str(error), param="structured_outputs.backend") from error
        refusals = []
        for entry in entries:
            try:
                _check_constraint(params.constraint, entry)
                backends[entry.name].check(params)
            except GrammarError as error:
                refusals.append((entry.name, error))
            else:
                return
        raise joint_refusal(refusals)

    return check


def _with_choices(settings: PluginSettings, choices: Sequence[Choice]) -> PluginSettings:
    """Return settings with which another process makes the same choices of contested names."""
    preferences = [
        f"{choice.entry.kind.name}:{choice.name}={choice.entry.source.plugin}" for choice in choices
    ]
    return replace(settings, prefer=(*settings.prefer, *preferences))


def _check_constraint(constraint: str, backend: Entry) -> None:
    constraints = backend.capabilities.constraints
    if constraint not in constraints:
        raise GrammarError(
            f"the {backend.name} backend does not support the constraint {constraint!r}, only "
            f"{', '.join(sorted(constraints))}{WAYS_OUT.get(constraint, '')}"
        )


def _read_vocabulary(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    from tokenizers import Tokenizer as FastTokenizer

    text = small_file_text(folder, "tokenizer.json")
    if text is None:
        raise GrammarError(f"grammars need a fast tokenizer, but {folder} has no tokenizer.json")
    return read_vocabulary(FastTokenizer.from_str(text), tokenizer.eos_token_ids, vocab_size)
