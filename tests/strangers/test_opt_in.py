"""A third party's logits processor that requests name, in the library and over HTTP."""

import asyncio
import json

import pytest
from acme_parts import Quire
from installed import sites, write_distribution

from quire import LLM, AsyncEngine, SamplingParams
from quire.errors import InvalidRequestError, PromptsError

PLUGIN = """
    from quire import hookimpl
    from quire.interfaces.sampling import RequestField, SamplerCapabilities

    ONLY = RequestField("only_token", int, 5, 0, 500, "The token to sample.")


    @hookimpl
    def register_samplers(registry):
        registry.add(
            "acme_only",
            "acme_only_step:OnlyToken",
            capabilities=SamplerCapabilities(
                stage="bias", fields=(ONLY,), is_vocab_parallel=False, is_opt_in=True
            ),
        )
"""
STEP = """
    import torch

    from quire.interfaces.sampling import LogitsProcessor


    class OnlyToken(LogitsProcessor):
        '''Samples one token; it is never neutral.'''

        def is_neutral(self, fields):
            return False

        def apply(self, logits, rows):
            token_ids = torch.arange(logits.shape[1], device=logits.device)
            return logits.masked_fill(token_ids != rows.field("only_token"), -torch.inf)
"""
MODULES = {"acme_only": PLUGIN, "acme_only_step": STEP}
OPTIONS = ("demo", "--samplers", "default,acme_only")
NAMED = {"logits_processors": ["acme_only"]}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    for site in sites(tmp_path, monkeypatch):
        write_distribution(site.folder, "acme-only", {"acme_only": "acme_only"}, **MODULES)
        yield site


def test_only_the_requests_that_name_it_are_changed(installed):
    params = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    with LLM("demo", samplers=("default", "acme_only")) as llm:

        def token_ids(*requests):
            outputs = llm.generate(
                ["quire is"] * len(requests),
                [SamplingParams(**params | request) for request in requests],
            )
            return [[each.token_ids for each in output.outputs] for output in outputs]

        ((plain,),) = token_ids({})
        named, other, alone, each = token_ids(
            NAMED, {}, NAMED | {"extra_args": {"only_token": 7}, "n": 2}, NAMED | {"best_of": 2}
        )
        assert (named, other, alone, each) == ([[5] * 6], [plain], [[7] * 6] * 2, [[5] * 6])
        with pytest.raises(PromptsError, match="did you mean 'acme_only'"):
            token_ids({"logits_processors": ["acme_onli"]})
        with pytest.raises(PromptsError, match="runs only for requests that name it"):
            token_ids({"extra_args": {"only_token": 7}})


def test_an_installed_step_that_is_not_in_use_is_offered(installed):
    async def refusal():
        engine = AsyncEngine("demo")
        try:
            async for _ in engine.generate("quire", SamplingParams(**NAMED)):
                pass
        finally:
            await engine.shutdown()

    with pytest.raises(InvalidRequestError, match="start with --samplers default,acme_only"):
        asyncio.run(refusal())


@pytest.mark.slow
def test_it_is_named_over_http_with_the_engine_in_another_process(tmp_path):
    write_distribution(tmp_path / "site", "acme-only", {"acme_only": "acme_only"}, **MODULES)
    quire = Quire(tmp_path / "site")
    with quire.serve(tmp_path / "log", *OPTIONS, "--engine-process") as client:

        def post(**fields):
            body = {"model": "demo", "prompt": "quire", "max_tokens": 4, "ignore_eos": True}
            return client.post("/v1/completions", json=body | {"temperature": 0} | fields)

        plain, named = post(), post(**NAMED)
        text = client.post("/detokenize", json={"model": "demo", "tokens": [5] * 4}).json()
        assert named.json()["choices"][0]["text"] == text["prompt"]
        assert plain.json()["choices"][0]["text"] != text["prompt"]
        for value, words in (
            (["acme_onli"], "did you mean 'acme_only'"),
            ([{"qualname": "a.B", "args": []}], "code is loaded at start-up, from a plugin"),
            ("acme_only", "logits_processors"),
        ):
            refused = post(logits_processors=value)
            assert refused.status_code == 400
            assert words in json.dumps(refused.json(), ensure_ascii=False)
        refused = post(**NAMED, use_beam_search=True, n=2)
        assert "cannot be combined with use_beam_search" in refused.json()["error"]["message"]
        document = client.get("/openapi.json").json()
        body = document["components"]["schemas"]["CompletionBody"]["properties"]
        (schema, _) = body["logits_processors"]["anyOf"]
        assert schema["items"] == {"type": "string", "enum": ["acme_only"]}
