"""`quire explain MODEL`: the parts of an engine and its memory plan; nothing is loaded or compiled.

It prints which plugin serves each part and why, and what the memory would be used for. No probe is
called, so every part is expected to run on this machine, and torch is not imported. The exit status
is 1 if an engine would not start because its cache does not fit.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options
from quire.cli.setting_values import read_settings
from quire.compose.choices.grid_choice import cores_warning
from quire.compose.choices.lora_choice import load_sources
from quire.compose.composition import Choice, Composition
from quire.config import SchedulerSettings
from quire.interfaces.kv_cache import KVPlan
from quire.launch.composing import Composed, compose_engine
from quire.launch.estimate import MemoryEstimate, estimate_memory
from quire.plugins.loading import load_plugins


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the composition and the memory plan."""
    settings = read_settings(arguments)
    composed = compose_engine(settings, load_plugins(settings.plugins), is_plan=True)
    if settings.lora.lora_source_options:
        load_sources(settings.lora, composed.composition, composed.plugins.registries)
    memory = estimate_memory(composed)
    num_replicas = composed.settings.parallel.data_parallel_size
    facts = describe(composed.composition, memory, num_replicas)
    if arguments.json:
        parts = [choice.as_dict() for choice in _choices(composed.composition)]
        memory_facts = describe_memory(memory, composed.settings.scheduler)
        print(json.dumps(facts | {"memory": memory_facts, "parts": parts}, indent=2))
    else:
        print("\n".join(_lines(composed, memory)))
    return 1 if memory.problem else 0


def describe(composition: Composition, memory: MemoryEstimate, num_replicas: int) -> dict[str, Any]:
    """Return the facts of a composition except its parts; `max_model_len` is the effective one."""
    description, shipped = composition.description, composition.shipped_checkpoint
    plan = memory.plan
    return {
        "model": composition.checkpoint.name,
        "shipped_by": None if shipped is None else str(shipped.entry.source),
        "folder": str(composition.checkpoint.folder),
        "gguf": composition.checkpoint.contents,
        "architecture": description.architecture,
        "left_out": description.left_out or None,
        "parameters": description.num_params,
        "layers": description.num_layers,
        "device": composition.device,
        "dtype": str(composition.dtype),
        "weights": composition.weights,
        "kv_cache_dtype": composition.kv_dtype,
        "replicas": num_replicas if num_replicas > 1 else None,
        "workers": composition.workers if composition.grid.size > 1 else None,
        "all_reduce": composition.all_reduce if composition.grid.tp_size > 1 else None,
        "kernels": str(composition.kernels),
        "cuda_graphs": composition.cuda_graphs.reason,
        "decode_steps": composition.decode_steps,
        "max_model_len": plan.max_model_len if plan else composition.max_model_len,
        "model_length": description.max_model_len,
        "block_size": composition.block_size,
    }


def _choices(composition: Composition) -> list[Choice]:
    """Return the parts, preceded by the checkpoint if a plugin ships it."""
    shipped = composition.shipped_checkpoint
    return [*([] if shipped is None else [shipped]), *composition.choices]


def describe_memory(memory: MemoryEstimate, scheduler: SchedulerSettings) -> dict[str, Any]:
    """Return the memory plan as JSON data; all sizes are per device.

    With several ranks, `ranks` has the sizes of each, and the others are those of the rank with the
    least memory to spare.
    """
    plan = memory.plan
    return {
        "weight_bytes": memory.weight_bytes,
        "estimated_bytes": memory.profile.parts if memory.profile else None,
        "max_cache_bytes": memory.cache_limit,
        "limited_by": memory.limited_by,
        "problem": memory.problem,
        "cache_bytes": plan.num_bytes if plan else None,
        "num_blocks": plan.num_blocks - 1 if plan else None,
        "block_size": plan.block_size if plan else None,
        "max_model_len": plan.max_model_len if plan else None,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_running": scheduler.max_running,
        "bytes_a_token": sum(group.bytes_a_token for group in memory.groups),
        "groups": [
            {
                "spec": group.spec,
                "layers": group.num_layers,
                "block_size": group.block_size,
                "page_bytes": group.page_bytes,
                "padding_bytes": group.padding_bytes,
                "bytes_a_token": group.bytes_a_token,
                "max_blocks": group.max_blocks,
            }
            for group in memory.groups
        ],
        "fits": [{"tokens": fit.num_tokens, "requests": fit.num_requests} for fit in memory.fits],
        "ranks": [
            {
                "rank": rank.rank,
                "stage": rank.stage,
                "tp_rank": rank.tp_rank,
                "layers": [rank.layers.start, rank.layers.stop - 1],
                "heads": rank.num_heads,
                "kv_heads": rank.num_kv_heads,
                "weight_bytes": rank.weight_bytes,
                "cache_bytes": rank.kv_bytes,
                "num_blocks": rank.num_blocks,
            }
            for rank in memory.ranks
        ],
    }


def _lines(composed: Composed, memory: MemoryEstimate) -> Iterator[str]:
    composition, scheduler = composed.composition, composed.settings.scheduler
    num_replicas = composed.settings.parallel.data_parallel_size
    for name, value in describe(composition, memory, num_replicas).items():
        if value is not None:
            yield f"{name.replace('_', ' '):<18} {value}"
    yield ""
    for warning in (composition.deprecation, cores_warning(composition, num_replicas)):
        if warning is not None:
            yield f"{'warning':<18} {warning}"
    if num_replicas > 1:
        yield "Of each replica:"
    if len(memory.ranks) > 1:
        yield from _rank_lines(memory)
        yield ""
        yield "Of the rank with the least memory to spare:"
    yield from _memory_lines(memory, scheduler)
    yield ""
    for choice in _choices(composition):
        yield f"{choice.role:<26} {choice.name}"
        yield f"{'':<26}   from {choice.entry.source}; {choice.reason}"
        for rejection in choice.others:
            yield f"{'':<26}   not {rejection.name}: {rejection.reason}"


def _memory_lines(memory: MemoryEstimate, scheduler: SchedulerSettings) -> Iterator[str]:
    yield f"{'weights':<18} {_size(memory.weight_bytes)}"
    if memory.profile is not None:
        for name, num_bytes in memory.profile.parts.items():
            if name != "weights" and num_bytes:
                yield f"{name:<18} {_size(num_bytes)}, estimated"
    if memory.cache_limit is not None:
        yield f"{'cache, at most':<18} {_size(memory.cache_limit)}: {memory.limited_by}"
    if memory.problem is not None:
        yield f"{'does not fit':<18} {memory.problem}"
    elif memory.plan is None:
        known = "known at start-up, unless kv_cache_memory_bytes or num_kv_blocks is set"
        yield f"{'cache':<18} {known}"
    if memory.plan is None:
        return
    plan = memory.plan
    if not plan.groups:
        yield f"{'cache':<18} none: no layer of this model has a KV cache"
        return
    yield (
        f"{'cache':<18} {_size(plan.num_bytes)}: {plan.num_blocks - 1:,} blocks of "
        f"{plan.block_size} tokens, for requests of {plan.max_model_len:,} tokens at most"
    )
    yield f"{'':<18} {_cache_reason(memory, plan, scheduler)}"
    yield ""
    yield from _group_lines(memory)
    yield ""
    for fit in memory.fits:
        yield f"{fit.num_requests:>6,} requests of {fit.num_tokens:,} tokens fit at the same time"
    running = scheduler.max_running
    yield f"{running:>6,} run at the same time, at most ({_running_limit(scheduler)})"


def _rank_lines(memory: MemoryEstimate) -> Iterator[str]:
    """Return a table of what each rank holds."""
    heads = (
        "rank",
        "stage",
        "tp rank",
        "layers",
        "heads",
        "KV heads",
        "weights",
        "cache",
        "blocks",
    )
    rows: list[tuple[str, ...]] = [heads]
    for rank in memory.ranks:
        cells = (rank.rank, rank.stage, rank.tp_rank)
        layers = f"{rank.layers.start}-{rank.layers.stop - 1}"
        blocks = "unknown" if rank.num_blocks is None else f"{rank.num_blocks:,}"
        cache = "unknown" if rank.kv_bytes is None else _short_size(rank.kv_bytes)
        sizes = (_short_size(rank.weight_bytes), cache, blocks)
        rows.append((*map(str, cells), layers, str(rank.num_heads), str(rank.num_kv_heads), *sizes))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _cache_reason(memory: MemoryEstimate, plan: KVPlan, scheduler: SchedulerSettings) -> str:
    if memory.cache_limit is None:
        return f"the size that {memory.limited_by} sets"
    planned = memory.planned_requests
    if planned is None or plan.num_bytes + plan.bytes_a_block > memory.cache_limit:
        return "all the memory that it may use"
    running = scheduler.max_running
    kept = f", and {planned - running} more to keep prefixes" if planned > running else ""
    return f"as much as {running} requests can use ({_running_limit(scheduler)}){kept}"


def _running_limit(scheduler: SchedulerSettings) -> str:
    """Return the option that limits how many requests run."""
    is_by_tokens = scheduler.max_num_batched_tokens < scheduler.max_num_seqs
    return "max_num_batched_tokens" if is_by_tokens else "max_num_seqs"


def _group_lines(memory: MemoryEstimate) -> Iterator[str]:
    """Return a table of the KV groups; a token takes memory in each group until it is freed."""
    rows = [("group", "spec", "layers", "bytes a token", "padding", "blocks a request, at most")]
    for index, group in enumerate(memory.groups):
        padding = f"{group.padding_bytes / group.page_bytes:.0%}"
        cost, held = f"{group.bytes_a_token:,}", f"{group.max_blocks:,}"
        rows.append((str(index), group.spec, str(group.num_layers), cost, padding, held))
    total = sum(group.bytes_a_token for group in memory.groups)
    rows.append(("", "all", "", f"{total:,}", "", ""))
    for label, spec, *cells in rows:
        columns = zip(cells, rows[0][2:], strict=True)
        aligned = "  ".join(cell.rjust(len(head)) for cell, head in columns)
        yield f"{label:<6} {spec:<36} {aligned}".rstrip()


def _size(num_bytes: int) -> str:
    """Return a number of bytes as text with a unit."""
    short = _short_size(num_bytes)
    return short if short.endswith("bytes") else f"{short} ({num_bytes:,} bytes)"


def _short_size(num_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes} bytes"
