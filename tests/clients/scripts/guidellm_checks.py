"""GuideLLM: a benchmark of a few requests, none of which fails."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import MODEL, check, run

NUM_REQUESTS = 8


@check
def a_benchmark_completes_all_its_requests(url):
    tokenizer = sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            str(Path(sys.executable).parent / "guidellm"), "run", "--disable-console",
            "--backend", f"kind=openai_http,target={url},model={MODEL}",
            "--profile", "kind=concurrent,streams=2",
            "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
            "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
            "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
            "--output", f"kind=json,path={report}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0), totals


run("guidellm")
