"""What docs/plugins tells a stranger to write works as it stands there, and passes the kit."""

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


def write_snippets(page, folder):
    snippets = SNIPPET.findall((PAGES / page).read_text(encoding="utf-8"))
    for path, code in snippets:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(code, encoding="utf-8")
    return [path for path, _ in snippets]


def test_the_documented_plugins_pass_their_kits(tmp_path):
    written = write_snippets("attention_backends.md", tmp_path)
    written += write_snippets("samplers.md", tmp_path)
    written += write_snippets("scheduling_policies.md", tmp_path)
    written += write_snippets("kv_cache_specs.md", tmp_path)
    written += write_snippets("native_kernels.md", tmp_path)
    assert sum(path.startswith("test_") for path in written) == 5
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path_with(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(re.search(r"(\d+) passed", ran.stdout)[1]) > 80


def test_the_documented_tables_of_contents_import_no_torch(tmp_path):
    write_snippets("attention_backends.md", tmp_path)
    write_snippets("samplers.md", tmp_path)
    write_snippets("scheduling_policies.md", tmp_path)
    write_snippets("kv_cache_specs.md", tmp_path)
    pages = "acme_attention.plugin, acme_sampling.plugin, acme_scheduling.plugin"
    pages += ", acme_streaming.plugin, acme_streaming.spec"
    code = f"import sys, {pages}; print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path_with(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == "False", ran.stderr
