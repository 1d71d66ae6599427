"""A server under ten times the load that it can serve: goodput, refusals, resets and latencies.

    python benchmarks/overload.py --write

The capacity is measured with as many clients as requests can run, each of which sends its next
request when it has its response: before the overload and after it, as other programs may slow the
machine down meanwhile; the larger one counts. Between these phases the same requests are sent at
ten times that rate, each over a connection of its own and whatever becomes of those before.

The clients are a process of their own that gives way to the server, and two more ask for `/livez`,
one on the port of the server and one on its health port, in all phases. All of them measure how
late they are themselves. The kernel's account says how long the event loop waited for a core. The
goodput is also compared by the CPU time of all processes of the server, which other programs on the
machine influence less than the time that passes.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overload_load import NICENESS, Load
from overload_server import Lag

from quire.cli.bench.serving.percentiles import percentile

HERE = Path(__file__).parent
RESULTS = HERE / "results"
NUM_CLIENTS = 64  # that measure the capacity; so many requests run at once
WARM_UP_S = 3.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What the kernel has counted for a server until one moment, in seconds.

    Attributes:
        front: CPU time of the process with the event loop.
        rest: CPU time of its descendants: the engine's process.
        waited: Time that the thread of the event loop was ready to run, and had no core.
    """

    front: float
    rest: float
    waited: float

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """Return the usage of a server by the id of its process."""
        waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        return cls(_cpu_s(pid), sum(map(_cpu_s, _descendants(pid))), waited)

    def since(self, before: "Usage") -> "Usage":
        """Return what was added since."""
        return Usage(
            self.front - before.front, self.rest - before.rest, self.waited - before.waited
        )


@dataclass(slots=True)
class Phase:
    """A load, and what the server used for it until its last response."""

    load: Load
    usage: Usage

    @property
    def completed_per_cpu_second(self) -> float:
        """Number of completions by the CPU time of the server, that for refusals included."""
        return self.load.num_completed / (self.usage.front + self.usage.rest)

    @property
    def front_s(self) -> float:
        """CPU time of the front end for a completion, if nothing was refused."""
        return self.usage.front / self.load.num_completed


@dataclass(slots=True)
class Server:
    """A server that runs."""

    pid: int
    port: int
    health_port: int
    lags: list[Lag] = field(default_factory=list)  # once it has ended

    def run(self, arguments: argparse.Namespace, **options: float) -> Phase:
        """Run a phase with these options of the clients."""
        options |= {"max-tokens": arguments.max_tokens, "timeout-s": arguments.timeout_s}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        command = [sys.executable, str(HERE / "overload_load.py"), str(self.port), *flags]
        before = Usage.of(self.pid)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return Phase(Load.from_json(done.stdout), Usage.of(self.pid).since(before))


@contextmanager
def served(options: Sequence[str]) -> Iterator[Server]:
    """Serve the demo model until the block ends."""
    command = [sys.executable, str(HERE / "overload_server.py"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("the server has no output")
            server = Server(process.pid, *json.loads(process.stdout.readline()))
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
        server.lags = json.loads(process.stdout.read().splitlines()[-1])


@contextmanager
def asking_livez(port: int) -> Iterator[dict[str, list[float]]]:
    """Ask for `/livez`; what was measured is there when the block has ended."""
    found: dict[str, list[float]] = {}
    command = [sys.executable, str(HERE / "livez_probe.py"), str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as probe:
        try:
            yield found
        finally:
            output, _ = probe.communicate()
        found |= json.loads(output)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start a server, measure, and stop it; return the figures."""
    with served(arguments.options) as server:
        with asking_livez(server.port), asking_livez(server.health_port):
            server.run(arguments, seconds=WARM_UP_S, clients=NUM_CLIENTS)
            before = server.run(arguments, seconds=arguments.seconds, clients=NUM_CLIENTS)
        rate = arguments.factor * before.load.completed_per_second()
        if not rate:
            raise RuntimeError("no request was completed in its time; give a longer --timeout-s")
        print(json.dumps({"capacity_per_s": rate / arguments.factor}), file=sys.stderr)
        with asking_livez(server.port) as main, asking_livez(server.health_port) as health:
            over = server.run(arguments, seconds=arguments.seconds, per_second=rate)
        with asking_livez(server.port), asking_livez(server.health_port):
            after = server.run(arguments, seconds=arguments.seconds, clients=NUM_CLIENTS)
    probes = {"livez": main["seconds"], "livez_health_port": health["seconds"]}
    probes["probe_late"] = main["late_s"]
    load = over.load
    probes["lag"] = [lag_s for at_s, lag_s in server.lags if load.began_s <= at_s <= load.ended_s]
    return figures(arguments, (before, over, after), probes)


def figures(
    arguments: argparse.Namespace,
    phases: tuple[Phase, Phase, Phase],
    delays_s: dict[str, list[float]],
) -> dict[str, Any]:
    """Return the figures of the capacity before, the overload, and the capacity after it."""
    before, over, after = phases
    load = over.load
    capacities = [phase.load.completed_per_second() for phase in (before, after)]
    capacity = max(capacities)
    goodput = load.completed_per_second(arguments.timeout_s)
    refused = [outcome for outcome in load.outcomes if outcome.status == 503]
    statuses = Counter(outcome.status for outcome in load.outcomes)
    served_s = [outcome.seconds for outcome in load.outcomes if outcome.status == 200]
    front_s = min(before.front_s, after.front_s)
    by_cpu = max(before.completed_per_cpu_second, after.completed_per_cpu_second)
    refusals_s = over.usage.front - front_s * load.num_completed
    delays_s = delays_s | {"refused": [o.seconds for o in refused], "clients_late": load.lags_s}
    return {
        "capacity_per_s": capacity,
        "capacities_before_and_after_per_s": capacities,
        "sent_per_s": len(load.outcomes) / (load.ended_s - load.began_s),
        "goodput_per_s": goodput,
        "goodput_ratio": goodput / capacity,
        "goodput_ratio_by_cpu": over.completed_per_cpu_second / by_cpu,
        "statuses": {str(status): num for status, num in sorted(statuses.items())},
        "resets": statuses[0],
        "refused_with_retry_after": sum(o.has_retry_after for o in refused) / max(1, len(refused)),
        "front_cpu_of_a_completion_ms": 1e3 * front_s,
        "front_cpu_of_a_refusal_ms": 1e3 * refusals_s / max(1, len(refused)),
        "front_cpu_s": over.usage.front,
        "engine_cpu_s": over.usage.rest,
        "clients_cpu_s": load.cpu_s,
        "clients_niceness": NICENESS,
        "event_loop_waited_for_a_core_s": over.usage.waited,
        "overload_s": max(o.ended_s for o in load.outcomes) - load.began_s,
        "load_average": os.getloadavg()[0],
        "served_p50_s": _percentile(served_s, 50),
        "served_p99_s": _percentile(served_s, 99),
    } | {
        f"{name}_p{percent}_ms": 1e3 * _percentile(values, percent)
        for name, values in delays_s.items()
        for percent in (50, 99)
    }


def _percentile(values: Sequence[float], percent: float) -> float:
    return percentile(sorted(values), percent) if values else 0.0


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process until now, with that of its threads; 0 if it has ended."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _descendants(pid: int) -> list[int]:
    parents = {
        int(name): int(fields[1])
        for name in os.listdir("/proc")
        if name.isdigit() and (fields := _stat(int(name)))
    }
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found[1:]


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def report(figures: dict[str, Any], arguments: argparse.Namespace) -> str:
    """Return the figures as a page."""
    two = "{:.1f} / {:.1f}".format
    rows = [
        ("capacity, requests/s", f"{figures['capacity_per_s']:.1f}"),
        ("the same before / after", two(*figures["capacities_before_and_after_per_s"])),
        ("sent, requests/s", f"{figures['sent_per_s']:.0f}"),
        ("goodput, requests/s", f"{figures['goodput_per_s']:.1f}"),
        ("goodput / capacity", f"{figures['goodput_ratio']:.2f}"),
        ("the same by CPU time of the server", f"{figures['goodput_ratio_by_cpu']:.2f}"),
        ("responses by status", ", ".join(f"{s}: {n}" for s, n in figures["statuses"].items())),
        ("connections without a response", str(figures["resets"])),
        ("503 with `Retry-After`", f"{figures['refused_with_retry_after']:.0%}"),
        (
            "CPU time of the front end for a completion / a refusal, ms",
            f"{figures['front_cpu_of_a_completion_ms']:.2f} / "
            f"{figures['front_cpu_of_a_refusal_ms']:.2f}",
        ),
        (
            "CPU time of front end / engine / clients, s",
            f"{figures['front_cpu_s']:.1f} / {figures['engine_cpu_s']:.1f} / "
            f"{figures['clients_cpu_s']:.1f}, of {figures['overload_s']:.1f}",
        ),
        ("event loop without a core, s", f"{figures['event_loop_waited_for_a_core_s']:.1f}"),
        ("completions, p50 / p99", _both(figures, "served", "s")),
        ("refusals, p50 / p99", _both(figures, "refused", "ms")),
        ("`/livez`, p50 / p99", _both(figures, "livez", "ms")),
        ("`/livez` on the health port, p50 / p99", _both(figures, "livez_health_port", "ms")),
        (
            "the process that asks for `/livez` late by, p50 / p99",
            _both(figures, "probe_late", "ms"),
        ),
        ("event loop of the clients late by, p50 / p99", _both(figures, "clients_late", "ms")),
        ("event loop of the server late by, p50 / p99", _both(figures, "lag", "ms")),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return (
        "# Overload\n\n"
        f"`python benchmarks/overload.py --write`, {time.strftime('%Y-%m-%d')}: the demo model on "
        "two cores, which also run the\nload generator (niceness "
        f"{NICENESS}), at a load average of {figures['load_average']:.1f}. Completions of "
        f"{arguments.max_tokens} tokens with\n`timeout_s` {arguments.timeout_s:g} are sent at "
        f"{arguments.factor:g} times the capacity for {arguments.seconds:g} s, each over a "
        "connection of its own. The goodput counts\nfrom the moment at which the first request may "
        f"have timed out.\n\n| figure | value |\n|---|---|\n{table}\n"
    )


def _both(figures: dict[str, Any], name: str, unit: str) -> str:
    return f"{figures[f'{name}_p50_{unit}']:.2f} / {figures[f'{name}_p99_{unit}']:.2f} {unit}"


def main() -> None:
    """Measure, print the figures as JSON, and write the files if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--factor", type=float, default=10.0)
    parser.add_argument("--timeout-s", type=float, default=10.0)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--write", action="store_true", help="write results/overload.json and .md")
    parser.add_argument("options", nargs="*", help="options of the server, NAME=VALUE")
    arguments = parser.parse_args()
    if arguments.seconds < 2 * arguments.timeout_s:
        parser.error("the goodput counts from --timeout-s on, so --seconds must be twice as much")
    found = run(arguments)
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.write:
        (RESULTS / "overload.json").write_text(text + "\n")
        (RESULTS / "overload.md").write_text(report(found, arguments))


if __name__ == "__main__":
    main()
