"""The rows of the scorecard, in the order of the table."""

from deaths import deaths, disconnects, draining, hangs
from isolation import hostile_grammars, plugin_faults
from mixed_load import fuzz, overload, soak
from row import Row
from surface import listeners, product_code, startup

ROWS = (
    Row("R1", "5xx under random bodies, valid and invalid, 1,000 a route", "0", fuzz),
    Row("R10", "disconnect → KV freed", "≤ 1 step + 100 ms, p99", disconnects, is_timed=True),
    Row(
        "R11", "engine killed → clients get a typed error; orphans",
        "≤ 2 s; 0 after 5 s", deaths, is_timed=True,
    ),
    Row(
        "R12", "SIGTERM: streams in flight complete; resets; exit",
        "100 %; 0; ≤ grace + 2 s", draining,
    ),
    Row(
        "R13", "hang → `/readyz` 503; false alarms in a long prompt",
        "≤ 10 s; 0", hangs, is_timed=True,
    ),
    Row(
        "R14", "ten times overload: goodput, event loop lag p99, `/livez` p99, `Retry-After`",
        "≥ 90 % of the peak; ≤ 50 ms; ≤ 100 ms; 100 %", overload, is_timed=True,
    ),
    Row(
        "R15", "soak: RSS slope, descriptors, threads, greedy completions",
        "< 1 MB/h; no growth; all equal", soak,
    ),
    Row(
        "R17", "listeners beside HTTP; paths without a key",
        "0; 2 (`/livez`, `/readyz`)", listeners,
    ),
    Row("R18", "`pickle`, `eval`, `torch.load` in product code", "0", product_code),
    Row(
        "R19", "hostile grammars: ITL p99 of other streams",
        "≤ +10 %", hostile_grammars, is_timed=True,
    ),
    Row("R20", "faults of plugins, each in a running server: it goes on", "100 %", plugin_faults),
    Row(
        "R23", "`quire --help`; `quire serve demo` to ready",
        "≤ 0.3 s; ≤ 5 s", startup, is_timed=True,
    ),
)  # fmt: skip
