"""The repository keeps its own rules."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib.metadata import entry_points
from pathlib import Path

import grimp
import pytest

from quire import messages
from quire.cli.options import all_options
from quire.interfaces.model import ModelCapabilities
from quire.plugins.discovery import ENTRY_POINT_GROUP, locate
from quire.plugins.isolation import known_hooks
from quire.plugins.kinds import KINDS
from quire.plugins.loading import Registries, load_plugins
from quire.sampling_params import SamplingParams

ROOT = Path(__file__).parents[2]
PLUGIN_IMPORTS = (
    "quire.interfaces",
    "quire.layers",
    "quire.messages",
    "quire.sampling_params",
    "quire.errors",
    "quire.native",
    "quire.machine",
)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PRODUCT = sorted([*ROOT.glob("framework/quire/**/*.py"), *ROOT.glob("plugins/*/quire_*/**/*.py")])
GENERATED_DOCS = sorted(path for path in ROOT.glob("docs/**/*.md") if "[[[cog" in path.read_text())

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "compile"}


def relative(path):
    return str(path.relative_to(ROOT))


def dotted(node):
    """Return `a.b` for an expression like it, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def offences(source):
    """Return what a source file does that no file of the product may do."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            modules = []
        for module in modules:
            if module.partition(".")[0] in FORBIDDEN_IMPORTS:
                yield f"line {node.lineno}: imports {module}"
        if isinstance(node, ast.Call) and dotted(node.func) in FORBIDDEN_CALLS:
            yield f"line {node.lineno}: calls {dotted(node.func)}"


def asserts(source):
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]


def test_installed_entry_points_are_those_of_pyproject():
    declared = PYPROJECT["project"]["entry-points"][ENTRY_POINT_GROUP]
    installed = {
        point.name: point.value
        for point in entry_points(group=ENTRY_POINT_GROUP)
        if point.dist.name == "quire"
    }
    assert declared == installed, "run: pip install -e ."


def test_every_plugin_package_has_an_entry_point_and_is_packed():
    packages = {
        path.parent.name: relative(path.parent) for path in ROOT.glob("plugins/*/quire_*/plugin.py")
    }
    declared = PYPROJECT["project"]["entry-points"][ENTRY_POINT_GROUP]
    assert declared == {name: f"{name}.plugin" for name in packages}
    packed = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert packed == {"framework/quire", *packages.values()}


def test_every_installed_plugin_loads_and_contests_nothing():
    plugins = load_plugins()
    assert [(r.source.plugin, r.error) for r in plugins.failed] == []
    assert [name for registry in plugins.registries for name in registry.contested()] == []


def test_every_registered_reference_points_at_a_module_that_exists():
    for registry in load_plugins().registries:
        for entry in registry.offers():
            assert locate(entry.reference), f"{registry.kind.name} {entry.name}: {entry.reference}"
            if isinstance(entry.capabilities, ModelCapabilities):
                assert locate(entry.capabilities.describe), entry.name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_registered_name_gives_what_its_interface_asks_for(kind):
    registry = load_plugins().registries[kind.name]
    for name in registry:
        assert callable(registry.get(name))  # `get` checks it against the interface


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_a_hook_a_registry_an_interface_and_a_docs_section(kind):
    assert f"register_{kind.name}" in known_hooks()
    assert Registries()[kind.name].kind is kind
    assert kind.name in Registries.__annotations__
    assert kind.name == "checkpoints" or kind.interface.__module__.startswith("quire.interfaces.")
    assert f"\n### {kind.name}\n" in (ROOT / "docs/plugins.md").read_text()


def test_a_plugin_imports_only_what_third_parties_may_import():
    """The list stands in docs/plugins.md; quire's own plugins need nothing else."""
    page = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    assert [name for name in PLUGIN_IMPORTS if f"`{name}`" not in page] == []
    for path in sorted(ROOT.glob("plugins/*/quire_*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in getattr(node, "names", ())]
            module = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            for name in [module] if module else names if isinstance(node, ast.Import) else ():
                if name.split(".")[0] == "quire":
                    allowed = name == "quire" or name.startswith(PLUGIN_IMPORTS)
                    assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_every_hook_has_a_docs_section():
    headings = re.findall(r"^## (\w+)\(", (ROOT / "docs/hooks.md").read_text(), re.MULTILINE)
    assert headings == list(known_hooks())


def test_every_attribute_that_a_request_hook_may_read_stands_in_the_docs_with_its_meaning():
    text = (ROOT / "docs/hooks.md").read_text()
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    for name in ("EngineRequest", "EngineOutput", "SamplingParams", "AdapterRef", "MediaSpan"):
        struct = SamplingParams if name == "SamplingParams" else vars(messages)[name]
        rows = re.findall(r"^\| `(\w+)` \| `.+` \| \S.* \|$", sections[name], re.MULTILINE)
        assert rows == list(struct.__struct_fields__), name
    for hook in ("request_received(request: EngineRequest)", "output: EngineOutput)"):
        assert hook in text


def test_no_two_modules_import_each_other_not_even_for_types():
    graph = grimp.build_graph("quire", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    pairs = [
        {one, other} for one, found in imports.items() for other in found if one in imports[other]
    ]
    assert pairs == []


def test_every_option_stands_in_the_docs_with_its_meaning():
    text = (ROOT / "docs/options.md").read_text()
    for option in all_options():
        assert f"| `{option.flag}`" in text, option.name
        assert option.help in text, option.name


@pytest.mark.parametrize("page", GENERATED_DOCS, ids=relative)
def test_generated_docs_are_current(page):
    command = [sys.executable, "-m", "cogapp", "--check", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run: cog -r {relative(page)}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_the_product_runs_no_strangers_code(path):
    assert list(offences(path.read_text())) == []


def public_classes(source):
    """Return the names of public classes at any depth; a `Protocol` describes another class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
            if "Protocol" not in {dotted(base).rpartition(".")[2] for base in bases}:
                yield node.name


def test_no_two_public_classes_of_the_framework_have_the_same_name():
    files = defaultdict(list)
    for path in sorted(ROOT.glob("framework/quire/**/*.py")):
        for name in public_classes(path.read_text()):
            files[name].append(relative(path))
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


def test_public_classes_are_found_without_protocols_and_private_ones():
    source = "class A: pass\nclass _B: pass\nclass C(Protocol[T]): pass\nclass D(t.Protocol): pass"
    assert list(public_classes(source)) == ["A"]


def test_no_assert_guards_the_product():
    guarded = [path for path in PRODUCT if "testing" not in path.parts]  # test kits may assert
    assert [relative(path) for path in guarded if asserts(path.read_text())] == []
    assert asserts("def f(x):\n    assert x")


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "eval('1')",
        "exec('1')",
        "import yaml\nyaml.load('x')",
    ],
)
def test_the_rule_finds_what_it_forbids(source):
    assert list(offences(source))


def test_the_rule_allows_methods_of_the_same_name():
    assert list(offences("model.eval()\nregistry.load(entry)\nre.compile('x')")) == []


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_the_first_line_of_a_file_says_its_decision(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, f"{relative(path)} has no docstring"
    assert docstring.splitlines()[0].endswith((".", ":", "?")) or len(docstring.splitlines()) > 1


def test_no_file_mentions_the_machine_that_it_was_written_on():
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    suffixes = {".py", ".md", ".toml", ".txt", ".yaml", ".json", ".jinja", ".sh", ""}
    homes = ("work/", "root/", "home/[a-z]", "tmp/[a-z]")
    home = re.compile("|".join("/" + place for place in homes))
    wrong = []
    for name in filter(None, tracked.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in suffixes and path.is_file() and path.stat().st_size < 2**20:
            found = home.search(path.read_text(encoding="utf-8", errors="replace"))
            wrong += [f"{name}: {found[0]}"] if found else []
    assert wrong == []


def test_the_changes_make_a_changelog():
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "0"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    texts = {path.read_text() for path in ROOT.glob("changes/*") if not path.name.startswith(".")}
    assert built.stdout.count("\n- ") == len(texts), "an issue's number or a kind is missing"


def test_no_module_is_named_utils_or_the_like():
    names = {path.stem for path in PRODUCT}
    assert not names & {"utils", "util", "helpers", "common", "misc", "legacy", "v2"}
