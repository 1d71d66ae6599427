"""Selection of sampler steps: logits processors by stage, then exactly one sampler."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from quire.compose.choices.choosing import ASKED_FOR
from quire.compose.choices.probes import cause_of
from quire.compose.composition import Choice, Rejection
from quire.config import DEFAULT_LOGITS_PROCESSORS, DEFAULT_SAMPLERS
from quire.errors import RefusedError, SettingsError
from quire.interfaces.companion_prompt import CompanionPrompt
from quire.interfaces.sampling import STAGES, RequestField
from quire.plugins.loading import Registries
from quire.plugins.registry import Entry

BUILT_IN = "built in"


def choose_samplers(
    registries: Registries,
    wanted: Iterable[str],
    kernels: str,
    unavailable: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Choice, ...]:
    """Expand `default`, and order the steps by stage and name.

    Args:
        registries: Registries of the installed plugins.
        wanted: Names of the steps, in any order.
        kernels: Kernels that the steps may run: "torch", "triton" or "native".
        unavailable: Reasons why steps cannot run on this machine, by their probes.

    Raises:
        PluginError: No plugin offers a step, its name is contested, it needs other kernels, or it
            cannot run on this machine.
        SettingsError: Not exactly one step samples, or two steps declare one request field
            differently.
    """
    names: dict[str, str] = {}
    rejected: dict[str, tuple[Rejection, ...]] = {}
    for name in wanted:
        if name == "default":
            sampler, others = _default_sampler(registries, kernels, unavailable)
            names |= dict.fromkeys((*DEFAULT_LOGITS_PROCESSORS, sampler), BUILT_IN)
            rejected[sampler] = others
        else:
            names[name] = ASKED_FOR
    entries = [registries.samplers.entry(name) for name in names]
    for entry in entries:
        needed = entry.capabilities.needs_kernels
        if needed not in (None, kernels):
            raise RefusedError(
                f"sampler {entry.name!r} of {entry.source} needs {needed} kernels, and the chosen "
                f"ones are {kernels}; use {DEFAULT_SAMPLERS[kernels]!r}, or --kernels {needed}, "
                "which reports the reason if these cannot run here"
            )
        if (reason := unavailable.get(entry.capabilities.probe)) is not None:
            raise RefusedError(
                f"sampler {entry.name!r} of {entry.source} cannot be used here: {reason}; use "
                f"{DEFAULT_SAMPLERS['torch']!r}"
            )
    entries.sort(key=_place_in_pipeline)
    samplers = [entry.name for entry in entries if entry.capabilities.stage == "sample"]
    if len(samplers) != 1:
        raise SettingsError(
            f"samplers need exactly one step that samples, got {', '.join(samplers) or 'none'}; "
            "write `--samplers default NAME` to add NAME to the built-in ones"
        )
    _check_fields(entries)
    _check_companions(entries)
    _check_states(entries)
    return tuple(
        Choice("sampler", entry, names[entry.name], rejected.get(entry.name, ()))
        for entry in entries
    )


def _place_in_pipeline(entry: Entry) -> tuple[int, bool, str]:
    """Return the sort key of a step: by stage, those with companions first, then by name."""
    stage, fields = entry.capabilities.stage, entry.capabilities.fields
    has_companion = any(isinstance(field.type, CompanionPrompt) for field in fields)
    return STAGES.index(stage), not has_companion, entry.name


def _default_sampler(
    registries: Registries, kernels: str, unavailable: Mapping[str, str]
) -> tuple[str, tuple[Rejection, ...]]:
    """Return the name of quire's sampler for these kernels, or else for torch."""
    name = DEFAULT_SAMPLERS[kernels]
    reason = unavailable.get(registries.samplers.entry(name).capabilities.probe)
    if reason is None:
        return name, ()
    return DEFAULT_SAMPLERS["torch"], (Rejection(name, cause_of(reason)),)


def offered_fields(registries: Registries, samplers: Iterable[Choice]) -> dict[str, str]:
    """Return the request fields that only steps not in use read, each with how to use one."""
    in_use = {choice.name: choice.entry.capabilities for choice in samplers}
    read = {field.name for step in in_use.values() for field in step.fields}
    return {
        field.name: (
            f"the sampler step {entry.name!r} of {entry.source} reads it: start with "
            f"--samplers default,{entry.name}"
        )
        for entry in registries.samplers.offers()
        if entry.name not in in_use
        for field in entry.capabilities.fields
        if field.name not in read
    }


def offered_logits_processors(registries: Registries, samplers: Iterable[Choice]) -> dict[str, str]:
    """Return the logits processors that are not in use, each with how to use it."""
    in_use = {choice.name for choice in samplers}
    return {
        entry.name: f"{entry.source} offers it: {_start_with(entry)}"
        for entry in registries.samplers.offers()
        if entry.name not in in_use and entry.capabilities.stage != "sample"
    }


def _start_with(entry: Entry) -> str:
    """Return how a logits processor gets into use."""
    start = f"start with --samplers default,{entry.name}"
    fields = ", ".join(field.name for field in entry.capabilities.fields)
    if entry.capabilities.is_opt_in or not fields:
        return start
    return f"{start}, and set its fields ({fields}) instead of its name"


def fused_steps(samplers: Sequence[Choice]) -> tuple[int, ...]:
    """Return the indexes of the steps that the sampler of a pipeline can fuse.

    Empty unless all steps that it declares to fuse are there and may be fused. A step is known by
    its name and its distribution, the sampler's own or quire: one of the same name from another
    distribution may differ.

    Args:
        samplers: Steps in the order of the pipeline, the sampler last.
    """
    sampler = samplers[-1].entry
    names = sampler.capabilities.fuses
    found = tuple(
        index
        for index, step in enumerate(samplers[:-1])
        if step.name in names and _may_fuse(sampler, step.entry)
    )
    return found if tuple(samplers[index].name for index in found) == names else ()


def _may_fuse(sampler: Entry, step: Entry) -> bool:
    is_known = step.source.is_ours or step.source.distribution == sampler.source.distribution
    return is_known and bool(step.capabilities.is_fusible)


def _check_fields(entries: Iterable[Entry]) -> None:
    """Check that steps which read the same request field declare it with one type and default."""
    owners: dict[str, tuple[RequestField, Entry]] = {}
    for entry in entries:
        for field in entry.capabilities.fields:
            known, owner = owners.setdefault(field.name, (field, entry))
            if (field.type, field.default) != (known.type, known.default):
                raise SettingsError(
                    f"samplers {owner.name!r} of {owner.source} and {entry.name!r} of "
                    f"{entry.source} both read the request field {field.name!r}, but with "
                    "different types or defaults; leave one of them out"
                )


def _check_companions(entries: Iterable[Entry]) -> None:
    """Check that requests have at most one companion."""
    owners = {
        field.name: entry
        for entry in entries
        for field in entry.capabilities.fields
        if isinstance(field.type, CompanionPrompt)
    }
    if len(owners) > 1:
        named = " and ".join(f"{entry.name!r} of {entry.source}" for entry in owners.values())
        raise SettingsError(
            f"a request has at most one companion, and the samplers {named} need one each for "
            f"{' and '.join(owners)}; leave one of them out"
        )


def _check_states(entries: Sequence[Entry]) -> None:
    """Check that no name of a state is a field or state of another step."""
    owners = {field.name: entry for entry in entries for field in entry.capabilities.fields}
    for entry in entries:
        for name in entry.capabilities.states:
            owner = owners.setdefault(name, entry)
            if owner is not entry:
                raise SettingsError(
                    f"sampler {entry.name!r} of {entry.source} carries the state {name!r}, which "
                    f"is a field or state of {owner.name!r} of {owner.source} too; leave one of "
                    "them out"
                )
