"""The clients that people bring work unchanged, each in an environment of its own.

Minutes, and the first run downloads packages: `pytest -m slow tests/clients`. Pinned versions are
tested; with QUIRE_TEST_PACKAGES=latest the newest ones.
"""

import math

import pytest
from client_checks import CLIENTS, run_checks
from package_environment import UnreachableIndexError
from served_process import served_process
from server_parts import CHECKPOINT

from quire.testing.checkpoints import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TOLERANCE = 1e-3  # of log-likelihoods


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with served_process(tmp_path_factory.mktemp("served") / "log") as served:
        yield str(served.client.base_url).rstrip("/")


def checked(name, url, checkpoint):
    try:
        found = run_checks(name, url, checkpoint)
    except UnreachableIndexError as error:
        pytest.skip(str(error))
    assert not found.failures, "\n".join(found.failures.values())
    return found


@pytest.mark.parametrize("name", [name for name in CLIENTS if name != "lm-eval"])
def test_a_client_works_unchanged(name, url):
    found = checked(name, url, CHECKPOINT)
    if found.missing:
        pytest.xfail(f"{found.package}: no {', '.join(sorted(set(found.missing.values())))}")
    assert found.passed


def test_lm_eval_gets_the_log_likelihoods_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = write_checkpoint(tmp_path / "model", "Qwen3ForCausalLM", seed=11, head_dim=32).folder
    with served_process(tmp_path / "log", "--dtype", "float32", model=folder) as served:
        found = checked("lm-eval", str(served.client.base_url).rstrip("/"), folder)
    assert len(found.likelihoods) == 24
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for context, continuation, logprob, is_greedy in found.likelihoods:
        token_ids = tokenizer(context + continuation)["input_ids"]
        length = len(tokenizer(context)["input_ids"])
        with torch.inference_mode():
            rows = model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
        places = range(length, len(token_ids))
        expected = math.fsum(rows[at - 1, token_ids[at]].item() for at in places)
        assert abs(logprob - expected) <= TOLERANCE, (context, continuation)
        best = rows[length - 1 : len(token_ids) - 1].argmax(-1).tolist()
        assert is_greedy == (best == token_ids[length:])
