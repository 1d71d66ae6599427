"""`quire plugins list | show NAME | doctor`: installed plugins, their states and problems."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from quire.cli.command_parser import CommandParser
from quire.cli.doctor import Problem, examine
from quire.cli.options import add_options
from quire.cli.setting_values import read_settings
from quire.errors import UnknownNameError
from quire.plugins.loading import Plugins, load_plugins
from quire.plugins.registry import Entry, did_you_mean
from quire.plugins.report import entry_report, plugins_report

CONTESTED, PASSED_OVER = "*", "~"
WIDTH = 24  # of a label; most are names of capabilities


def add_arguments(parser: CommandParser) -> None:
    """Declare the arguments of an action."""
    if parser.path[-1] == "show":
        parser.add_word("name", "a plugin, a registered name, or KIND:NAME", is_required=True)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_options(parser, ["plugins"])


def run(arguments: argparse.Namespace) -> int:
    """Load the plugins and print what was asked for."""
    settings = read_settings(arguments).plugins
    plugins = load_plugins(settings)
    actions: dict[str, Callable[[argparse.Namespace, Plugins], int]] = {
        "list": _list,
        "show": _show,
        "doctor": _doctor,
    }
    return actions[arguments.path[-1]](arguments, plugins)


def _list(arguments: argparse.Namespace, plugins: Plugins) -> int:
    reports = plugins_report(plugins, detailed=True)
    if arguments.json:
        print(json.dumps(reports, indent=2))
        return 0
    rows = [("PLUGIN", "STATE", "DISTRIBUTION", "OFFERS")]
    for report in reports:
        about = (report["name"], report["state"], f"{report['distribution']} {report['version']}")
        first, *rest = _offers(report) or [""]
        rows += [(*about, first), *(("", "", "", line) for line in rest)]
    _print_table(rows)
    marks = {_mark(report, offer) for report in reports for offer in report["offers"]}
    if CONTESTED in marks:
        print(f"\n{CONTESTED} several plugins offer it; see `quire plugins doctor`")
    if PASSED_OVER in marks:
        print(f"\n{PASSED_OVER} another plugin serves it; see `quire plugins doctor`")
    if plugins.failed:
        print("\nWhat failed, and why: `quire plugins doctor`")
    return 0


def _offers(report: dict[str, Any]) -> list[str]:
    """Return one line per kind with the names that a plugin offers, or its error."""
    if report["error"]:
        return [report["error"]]
    names: dict[str, list[str]] = {}
    for offer in report["offers"]:
        names.setdefault(offer["kind"], []).append(offer["name"] + _mark(report, offer))
    lines = [f"{kind}: {', '.join(found)}" for kind, found in names.items()]
    requests = [hook for hook in report["hooks"] if not hook.startswith("register_")]
    return lines + ([f"hooks: {', '.join(requests)}"] if requests else [])


def _mark(report: dict[str, Any], offer: dict[str, Any]) -> str:
    """Return the mark behind a name that the plugin of the report does not serve."""
    if offer["is_contested"]:
        return CONTESTED
    return "" if offer["served_by"] == report["name"] else PASSED_OVER


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())


def _show(arguments: argparse.Namespace, plugins: Plugins) -> int:
    found = find(plugins, arguments.name)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    print("\n\n".join("\n".join(lines(report)) for report in (*found["plugins"], *found["names"])))
    return 0


def find(plugins: Plugins, name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the reports of all plugins and offered names that `name` matches.

    Raises:
        UnknownNameError: It matches nothing that is installed.
    """
    by_name = {report["name"]: report for report in plugins_report(plugins, detailed=True)}
    found = [by_name[r.source.plugin] for r in plugins.records if name in r.source.names]
    offers = [offer for offer in _all_offers(plugins) if name in _names(offer)]
    if not found and not offers:
        known = [n for offer in _all_offers(plugins) for n in _names(offer)]
        known += [n for record in plugins.records for n in record.source.names]
        raise UnknownNameError(
            f"there is no plugin and no offered name {name!r} (`quire plugins list` shows all)"
            f"{did_you_mean(name, known)}"
        )
    return {"plugins": found, "names": [_offer_report(plugins, offer) for offer in offers]}


def _all_offers(plugins: Plugins) -> Iterator[Entry]:
    return (offer for registry in plugins.registries for offer in registry.offers())


def _names(offer: Entry) -> tuple[str, str]:
    return offer.name, f"{offer.kind.name}:{offer.name}"


def _offer_report(plugins: Plugins, offer: Entry) -> dict[str, Any]:
    source = offer.source
    about = {
        "plugin": source.plugin,
        "distribution": source.distribution,
        "version": source.version,
    }
    report = entry_report(offer, plugins.registries, detailed=True)
    return {"name": report.pop("name"), "kind": report.pop("kind")} | about | report


def _doctor(arguments: argparse.Namespace, plugins: Plugins) -> int:
    problems = examine(plugins)
    if arguments.json:
        print(json.dumps([problem.as_dict() for problem in problems], indent=2))
    else:
        _print_problems(problems, len(plugins.records))
    return int(any(problem.is_fatal for problem in problems))


def _print_problems(problems: Iterable[Problem], num_plugins: int) -> None:
    problems = list(problems)
    for problem in problems:
        print(f"{'problem' if problem.is_fatal else 'note'}: {problem.what}")
        print(f"  {problem.way_out}")
        for line in problem.details.rstrip().splitlines():
            print(f"  | {line}")
        print()
    num_fatal = sum(problem.is_fatal for problem in problems)
    print(f"{num_plugins} plugins, {num_fatal} problem{'' if num_fatal == 1 else 's'}")


def lines(report: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield JSON data as lines of text; empty values are left out."""
    for key, value in report.items():
        if value is None or value == []:
            continue
        label = f"{indent}{key.replace('_', ' '):<{WIDTH}} "
        if key == "offers":
            yield label.rstrip()
            yield from (f"{indent}  {o['kind']}:{o['name']}  {o['reference']}" for o in value)
        elif key == "traceback":
            yield label.rstrip()
            yield from (f"{indent}  | {line}" for line in value.rstrip().splitlines())
        elif isinstance(value, dict):
            yield label.rstrip()
            yield from lines(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield label.rstrip()
            yield from (f"{indent}  {json.dumps(item)}" for item in value)
        elif isinstance(value, list):
            yield label + ", ".join(map(str, value))
        else:
            yield label + str(value)
