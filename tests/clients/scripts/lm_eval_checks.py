"""lm-eval's `local-completions` with a task of this folder; prints the log-likelihoods it got."""

import json
import sys
import tempfile
import urllib.request
from pathlib import Path

from checks import check, run
from lm_eval import simple_evaluate
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

CHOICES = [" blue", " green and wet", " seven", " a"]
QUESTIONS = ["The sky is", "Grass is often", "Three and four make", "One, two,", "é is", "x"]
TASK = """
task: local_choices
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
"""


def task_folder() -> str:
    """Write a task with its documents; return its folder."""
    folder = Path(tempfile.mkdtemp())
    documents = [
        {"question": question, "choices": CHOICES, "answer": index % len(CHOICES)}
        for index, question in enumerate(QUESTIONS)
    ]
    data = folder / "documents.jsonl"
    data.write_text("\n".join(map(json.dumps, documents)))
    (folder / "local_choices.yaml").write_text(TASK.replace("DATA", str(data)))
    return str(folder)


def model(url, **options):
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
        name = json.load(response)["data"][0]["id"]
    address = f"{url}/v1/completions"
    return LocalCompletionsAPI(
        base_url=address, model=name, tokenizer=sys.argv[2], max_length=120, **options
    )


@check
def a_task_is_evaluated(url):
    manager = TaskManager(include_path=task_folder(), include_defaults=False)
    found = simple_evaluate(
        model=model(url, num_concurrent=4), tasks=["local_choices"], task_manager=manager,
        log_samples=True, bootstrap_iters=0,
    )  # fmt: skip
    samples = found["samples"]["local_choices"]
    assert len(samples) == len(QUESTIONS)
    rows = [
        [*arguments, *response[0]]
        for sample in samples
        for arguments, response in zip(pairs(sample), sample["resps"], strict=True)
    ]
    assert len(rows) == len(QUESTIONS) * len(CHOICES)
    print(json.dumps({"likelihoods": rows}), flush=True)


def pairs(sample):
    """Return context and continuation of each request of a sample."""
    found = sample["arguments"]
    rows = found.values() if isinstance(found, dict) else found
    return [list(row.values())[:2] if isinstance(row, dict) else list(row)[:2] for row in rows]


run("lm-eval")
