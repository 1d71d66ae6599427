"""Gathers the schemas of the measure from unpacked packages, with generated, judged instances.

    python benchmarks/schemas/gather.py FOLDER SUITE

FOLDER has a folder for each unpacked package of npm (`npm_NAME`) or PyPI (`pip_NAME`); SUITE is
the folder `json/tests` of the source distribution of `jsonschema`. Only packages whose metadata
names a licence that permits redistribution are read; their texts are stored with the schemas.
"""

import json
import random
import re
import signal
import sys
from pathlib import Path
from typing import Any

from instances import InstanceGenerator, mutations

from quire.testing.schema_judge import judge

HERE = Path(__file__).parent
LICENCES = re.compile(r"^\(?(MIT|Apache|BSD|ISC|0BSD|MIT-0)", re.IGNORECASE)
FIELDS = ("License-Expression", "Classifier: License :: OSI Approved", "License")
MAX_BYTES = 40_000  # of one schema
MAX_PER_PACKAGE = 64
NUM_INSTANCES = 4
DIALECTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}
OPTIONAL = ("optional/ecmascript-regex.json",)


def main(packages: Path, suite: Path) -> None:
    """Write `real.jsonl`, `suite.jsonl`, `SOURCES.md` and `LICENCES.txt`."""
    rows, sources, licences = [], [], []
    for folder in sorted(packages.iterdir()):
        licence, text = licence_of(folder)
        if not LICENCES.match(licence):
            print(f"{folder.name}: left out, its licence is {licence or 'not named'}")
            continue
        found = [row for row in schemas_of(folder) if add_instances(row)]
        if found:
            rows += found
            sources.append(
                f"| {folder.name.split('_', 1)[0]} | {folder.name.split('_', 1)[1]} | "
                f"{licence} | {len(found)} |"
            )
            licences.append(f"===== {folder.name}: {licence}\n\n{text}\n")
        print(folder.name, len(found), flush=True)
    write("real", rows)
    write("suite", list(suite_rows(suite)))
    head = "| registry | package | licence | schemas |\n|---|---|---|---|\n"
    (HERE / "SOURCES.md").write_text(
        "# Sources of the schemas\n\n"
        + head
        + "\n".join(sources)
        + (
            "\n\n`suite.jsonl` is the official suite of JSON Schema (MIT), from the source "
            "distribution of `jsonschema`.\nThe licences are in `LICENCES.txt`.\n"
        )
    )
    (HERE / "LICENCES.txt").write_text("\n".join(licences))


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Write one schema a line."""
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    (HERE / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def licence_of(folder: Path) -> tuple[str, str]:
    """Return the name and the text of a package's licence."""
    texts = [p for p in sorted(folder.rglob("*")) if "licen" in p.name.lower() and p.is_file()]
    text = texts[0].read_text(errors="replace") if texts else ""
    for manifest in folder.glob("*/package.json"):
        return str(json.loads(manifest.read_text()).get("license", "")), text
    for manifest in folder.glob("*.dist-info/METADATA"):
        fields = dict(
            re.findall(
                r"^(License-Expression|Classifier: License :: OSI Approved|License) ?:+ (.+)$",
                manifest.read_text(),
                re.MULTILINE,
            )
        )
        return next((fields[name] for name in FIELDS if name in fields), ""), text
    return "", text


def schemas_of(folder: Path) -> list[dict[str, Any]]:
    """Return a spread of a package's schemas that refer to nothing outside themselves."""
    found: dict[str, dict[str, Any]] = {}
    paths = sorted(folder.rglob("*.json"))
    random.Random(folder.name).shuffle(paths)
    for path in paths:
        if len(found) >= MAX_PER_PACKAGE:
            break
        if path.stat().st_size > 4 * MAX_BYTES or "package.json" in path.name:
            continue
        try:
            schema = json.loads(path.read_text())
        except (ValueError, RecursionError):
            continue
        packed = json.dumps(schema, separators=(",", ":"))
        if is_schema(schema) and len(packed) < MAX_BYTES and not has_outside_reference(schema):
            name = f"{folder.name.split('_', 1)[1]}/{path.relative_to(folder)}"
            found.setdefault(packed, {"name": name, "schema": schema})
    return sorted(found.values(), key=lambda row: row["name"])


def is_schema(value: Any) -> bool:
    """Return whether a document is a schema that constrains something."""
    parts = {"properties", "anyOf", "oneOf", "allOf", "$ref", "items", "patternProperties"}
    return (
        isinstance(value, dict)
        and bool(value.keys() & parts)
        and ("$schema" in value or isinstance(value.get("type"), str | list))
        and isinstance(value.get("properties", {}), dict)
    )


def has_outside_reference(value: Any) -> bool:
    """Return whether a reference leaves the document."""
    if isinstance(value, dict):
        reference = value.get("$ref", "#")
        if isinstance(reference, str) and not reference.startswith("#"):
            return True
        return any(has_outside_reference(part) for part in value.values())
    return isinstance(value, list) and any(map(has_outside_reference, value))


def add_instances(row: dict[str, Any]) -> bool:
    """Add valid and invalid instances; return False if the schema cannot be judged in time."""
    signal.setitimer(signal.ITIMER_REAL, 8)
    rng = random.Random(row["name"])
    valid: dict[str, Any] = {}
    invalid: dict[str, Any] = {}
    try:
        oracle = judge(row["schema"])
        oracle.check_schema(row["schema"])
        generator = InstanceGenerator(row["schema"], rng)
        for _ in range(40):
            instance = generator.instance(row["schema"])
            text = json.dumps(instance)
            if len(text) > 4_000:
                continue
            (valid if oracle.is_valid(instance) else invalid)[text] = instance
            if len(valid) >= NUM_INSTANCES and len(invalid) >= NUM_INSTANCES:
                break
        for instance in list(valid.values()):
            for mutation in mutations(instance, rng):
                if not oracle.is_valid(mutation):
                    invalid[json.dumps(mutation)] = mutation
    except TooSlowError:
        if not valid:
            return False
    except Exception as error:  # noqa: BLE001 - a schema that the oracle cannot read is left out
        print(f"  {row['name']}: {type(error).__name__} {str(error)[:100]}")
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    row["valid"] = list(valid.values())[:NUM_INSTANCES]
    row["invalid"] = rng.sample(list(invalid.values()), min(len(invalid), 2 * NUM_INSTANCES))
    return bool(valid)


def suite_rows(suite: Path) -> Any:
    """Yield the schemas of the official suite, in the dialect of their folder."""
    for dialect, uri in DIALECTS.items():
        folder = suite / dialect
        names = [*folder.glob("*.json"), *(folder / name for name in OPTIONAL)]
        for path in sorted([*names, *(folder / "optional/format").glob("*.json")]):
            for group in json.loads(path.read_text()):
                cases, schema = group["tests"], group["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": uri} | schema
                yield {
                    "name": f"{dialect}/{path.relative_to(folder)}: {group['description']}",
                    "schema": schema,
                    "valid": [case["data"] for case in cases if case["valid"]],
                    "invalid": [case["data"] for case in cases if not case["valid"]],
                }


class TooSlowError(Exception):
    """A schema took too long to judge."""


def _raise_timeout(*_: Any) -> None:
    raise TooSlowError


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _raise_timeout)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
