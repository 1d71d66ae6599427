"""The plugins in the snippets of docs/plugins work as written, and pass the conformance kits."""

import os
import re
import subprocess
import sys
from pathlib import Path

from processes import path_with

PAGES = Path(__file__).parents[3] / "docs" / "plugins"
SNIPPET = re.compile(
    r"^```(?:python|cpp)\n(?:#|//) (\S+\.(?:py|cpp))\n(.*?)^```$", re.MULTILINE | re.DOTALL
)

WITH_KITS = (
    "attention_backends.md",
    "executors.md",
    "kv_cache_specs.md",
    "lora_sources.md",
    "native_kernels.md",
    "reasoning_parsers.md",
    "routes.md",
    "samplers.md",
    "scheduling_policies.md",
    "structured_output.md",
)
LIGHT = ("plugin.py", "/spec.py", "/files.py", "acme_shelf/source.py")


def write_snippets(page, folder):
    snippets = SNIPPET.findall((PAGES / page).read_text(encoding="utf-8"))
    for path, code in snippets:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(code, encoding="utf-8")
    return [path for path, _ in snippets]


def test_the_documented_plugins_pass_their_kits(tmp_path):
    written = [path for page in WITH_KITS for path in write_snippets(page, tmp_path)]
    assert sum(path.startswith("test_") for path in written) == len(WITH_KITS)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path_with(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(re.search(r"(\d+) passed", ran.stdout)[1]) > 130


def test_the_documented_tables_of_contents_import_no_torch(tmp_path):
    written = [
        path for page in (*WITH_KITS, "checkpoints.md") for path in write_snippets(page, tmp_path)
    ]
    light = [path for path in written if path.endswith(LIGHT)]
    assert len(light) == 13
    modules = ", ".join(path.removesuffix(".py").replace("/", ".") for path in light)
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path_with(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == "False", ran.stderr


def test_the_documented_test_of_a_model_passes(tmp_path):
    assert "test_acme.py" in write_snippets("models.md", tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_acme.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path_with(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(re.search(r"(\d+) passed", ran.stdout)[1]) >= 14
