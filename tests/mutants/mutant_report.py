"""Write benchmarks/results/mutants.md: mutants by table, noticed before and after, and the rest.

python tests/mutants/mutant_report.py before after
"""

import sys
from collections import Counter
from collections.abc import Sequence

from mutant_outcomes import FILE, NOTICED, SURVIVED, read_outcomes
from mutant_tables import Mutant, read_table, table_names

from quire.cli.bench.tables import markdown_lines

INTRODUCTION = """# Mutants

Small wrong changes to the product, one at a time, each with the tests that should notice it. The
tables are in `tests/mutants`, and `make mutants` tries them. "Noticed" counts mutants that were
tried and are not equivalent. Where the changed text is new, there is no "before". "Not tried" are
those that are not equivalent and have no outcome "after": most are newer. No share has them."""


def main(labels: Sequence[str]) -> None:
    """Write the page."""
    FILE.with_suffix(".md").write_text(page(labels))


def page(labels: Sequence[str]) -> str:
    """Return the page: a table, the survivors of the last label, and the equivalent mutants."""
    mutants = {name: read_table(name) for name in table_names()}
    outcomes = {label: read_outcomes(label) for label in labels}
    everyone = [mutant for table in mutants.values() for mutant in table]
    rows = [row(name, mutants[name], outcomes) for name in mutants]
    rows.append(row("**all**", everyone, outcomes))
    noticed = [f"noticed {label}" for label in labels]
    head = ["table", "mutants", "equivalent", "not tried", *noticed]
    equivalent = [mutant for mutant in everyone if mutant.equivalent]
    lived = [mutant for mutant in everyone if outcomes[labels[-1]].get(mutant.key) == SURVIVED]
    survivors = [mutant for mutant in lived if not mutant.equivalent]
    parts = [
        INTRODUCTION,
        "\n".join(markdown_lines(head, rows)),
        "## Survivors",
        "\n".join(f"* `{m.file}`: {m.what}" for m in survivors) or "None.",
        "## Equivalent, and why",
        "\n".join(f"* `{m.file}`: {m.what}. {m.equivalent}" for m in equivalent) or "None.",
    ]
    return "\n\n".join(parts) + "\n"


def row(name: str, mutants: Sequence[Mutant], outcomes: dict[str, dict[str, str]]) -> list[str]:
    proper = [mutant for mutant in mutants if not mutant.equivalent]
    *_, last = outcomes.values()
    untried = sum(last.get(mutant.key) not in (NOTICED, SURVIVED) for mutant in proper)
    shares = [_share(proper, found) for found in outcomes.values()]
    return [name, str(len(mutants)), str(len(mutants) - len(proper)), str(untried), *shares]


def _share(mutants: Sequence[Mutant], outcomes: dict[str, str]) -> str:
    count = Counter(outcomes.get(mutant.key) for mutant in mutants)
    tried = count[NOTICED] + count[SURVIVED]
    return f"{count[NOTICED]} of {tried} ({count[NOTICED] / tried:.0%})" if tried else "-"


if __name__ == "__main__":
    main(sys.argv[1:] or ["before", "after"])
