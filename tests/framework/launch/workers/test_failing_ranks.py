"""Plugins that fail on one rank or on all, and ranks that differ: no rank decides alone.

A plugin is installed that fails in the processes that a file names.
"""

import os

import pytest
from grid_scenarios import write_random_adapter
from installed import write_distribution
from processes import eventually
from watched_launch import WatchedLaunch, watched

from quire import LLM, LoRARequest, SamplingParams
from quire.errors import AdapterSourceError, EngineDeadError, PluginError, RequestFailedError
from quire.launch.workers.placing import ports
from quire.messages import RankPlace
from quire.testing.checkpoints import write_checkpoint

CURSED = 299  # token id
PIDS = "TEST_FICKLE_PIDS"
SWAPPED = "TEST_SWAPPED_FOLDER"
PLUGIN = """
    from quire import hookimpl
    from quire.interfaces.model import ModelCapabilities
    from quire.interfaces.sampling import RequestField, SamplerCapabilities

    @hookimpl
    def register_models(registry):
        capabilities = ModelCapabilities(
            describe="fickle_chosen:describe", supports_pipeline_parallel=True
        )
        registry.add("FickleForCausalLM", "fickle_parts:Fickle", capabilities=capabilities)

    @hookimpl
    def register_samplers(registry):
        for name, is_vocab_parallel in (("raising", True), ("lopsided", False)):
            field = RequestField(name, bool, False)
            registry.add(
                name,
                f"fickle_parts:{name.title()}",
                capabilities=SamplerCapabilities(
                    stage="bias", fields=(field,), is_vocab_parallel=is_vocab_parallel
                ),
            )

    @hookimpl
    def register_lora_sources(registry):
        registry.add("fickle", "fickle_source:FickleSource")
"""
CHOSEN = """
    import os
    from pathlib import Path

    from quire_models.family_table import describe as describe_family

    def describe(config):
        return describe_family(config | {"architectures": ["Qwen3ForCausalLM"]})

    def is_chosen():
        return str(os.getpid()) in Path(os.environ["TEST_FICKLE_PIDS"]).read_text().split()
"""
PARTS = """
    from fickle_chosen import is_chosen
    from quire.interfaces.sampling import LogitsProcessor
    from quire_models.decoder.decoder_model import DecoderForCausalLM

    CURSED = 299

    class Fickle(DecoderForCausalLM):
        def forward(self, input_ids, *arguments, **options):
            if input_ids is not None and bool((input_ids == CURSED).any()) and is_chosen():
                raise RuntimeError("a cursed token")
            return super().forward(input_ids, *arguments, **options)

    class Raising(LogitsProcessor):
        def is_neutral(self, fields):
            return not fields["raising"]

        def apply(self, logits, rows):
            if is_chosen():
                raise RuntimeError("a cursed row")
            return logits

    class Lopsided(LogitsProcessor):
        def is_neutral(self, fields):
            return not fields["lopsided"]

        def apply(self, logits, rows):
            if is_chosen():
                logits[:, 5] += 1000 * rows.field("lopsided")[:, 0]
            return logits
"""
SOURCE = """
    from fickle_chosen import is_chosen
    from quire_lora.peft_source import PeftSource

    class FickleSource(PeftSource):
        def read(self, folder, max_rank):
            if is_chosen():
                raise OSError("the disk is gone")
            return super().read(folder, max_rank)
"""
SWAPPING = """
    import os
    from pathlib import Path

    from quire import hookimpl
    from quire.interfaces.executor import ExecutorCapabilities
    from quire_executors.processes import ProcessesExecutor

    class Swapping(ProcessesExecutor):
        def place(self, launch):
            for info in Path(os.environ["TEST_SWAPPED_FOLDER"]).glob("*-1.0.dist-info"):
                text = (info / "METADATA").read_text().replace("Version: 1.0", "Version: 2.0")
                (info / "METADATA").write_text(text)
                info.rename(info.with_name(info.name.replace("-1.0.", "-2.0.")))
            return super().place(launch)

    @hookimpl
    def register_executors(registry):
        registry.add(
            "swapping",
            "swapping_plugin:Swapping",
            api=2,
            capabilities=ExecutorCapabilities(
                max_tensor_parallel_size=None, max_pipeline_parallel_size=None
            ),
        )
"""
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 10], [11] * 20]
CURSED_PROMPT = [12, CURSED, 13]
GRIDS = [  # with the node of each rank: ranks of several nodes are connected by Gloo
    pytest.param((2, 1), "aa", id="tp2"),
    pytest.param((1, 2), "aa", id="pp2", marks=pytest.mark.slow),
    pytest.param((2, 2), "aaaa", id="tp2-pp2", marks=pytest.mark.slow),
    pytest.param((2, 1), "ab", id="tp2-over-nodes", marks=pytest.mark.slow),
    pytest.param((2, 2), "aabb", id="stages-on-nodes", marks=pytest.mark.slow),
    pytest.param((2, 2), "abab", id="stages-over-nodes", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a checkpoint, and the plugin installed."""
    place, patch = tmp_path_factory.mktemp("place"), pytest.MonkeyPatch()
    written = write_checkpoint(place / "model", "FickleForCausalLM", layout="qwen3")
    for index in range(4):
        write_random_adapter(written, index)
    write_distribution(
        place / "site",
        "fickle",
        {"fickle": "fickle_plugin"},
        fickle_plugin=PLUGIN,
        fickle_parts=PARTS,
        fickle_chosen=CHOSEN,
        fickle_source=SOURCE,
    )
    (place / "pids").write_text("")
    patch.syspath_prepend(str(place / "site"))
    patch.setenv(PIDS, str(place / "pids"))
    yield place
    patch.undo()


def options(place, grid=(1, 1), **others):
    adapters = tuple(f"style{i}={place}/model/adapter-{i}" for i in range(2))
    return {
        "model": str(place / "model"),
        "dtype": "float32",
        "threads": 1,
        "enable_lora": True,
        "lora_modules": adapters,
        "max_loras": 1,
        "samplers": ("default", "raising", "lopsided"),
        "lora_source": "fickle",
        "tensor_parallel_size": grid[0],
        "pipeline_parallel_size": grid[1],
        **others,
    }


@pytest.fixture(scope="module")
def expected(place):
    """Completions of one process: of the prompts, of the cursed one, and by four adapters."""
    prompts = [*PROMPTS, CURSED_PROMPT, *[PROMPTS[0]] * 4]
    adapters = [None] * 4 + ["style0", "style1", unlisted(place, 2), unlisted(place, 3)]
    with LLM(**options(place)) as llm:
        return tokens_of(llm.generate(prompts, GREEDY, lora_request=adapters))


def unlisted(place, index):
    """An adapter that the engine does not know before the first request."""
    return LoRARequest(f"style{index}", index, f"{place}/model/adapter-{index}")


def tokens_of(outputs):
    return [output.outputs[0].token_ids for output in outputs]


class Fickle:
    """An engine of several ranks, of which some fail when told to.

    Args:
        llm: The engine.
        pids: Processes of the ranks.
        place: Folder with the file that names the processes that fail.
    """

    def __init__(self, llm, pids, place):
        self.llm, self.pids, self.place = llm, pids, place

    def choose(self, *ranks):
        """Let some ranks fail from now on, and the others not."""
        (self.place / "pids").write_text(" ".join(str(self.pids[rank]) for rank in ranks))

    def generate(self, prompts, params, adapters=None):
        """Return tokens, or the error, of each prompt."""
        outcomes = self.llm.generate(prompts, params, lora_request=adapters, return_errors=True)
        return [
            outcome if isinstance(outcome, Exception) else outcome.outputs[0].token_ids
            for outcome in outcomes
        ]


@pytest.fixture(scope="module")
def fickle(place, grid, nodes, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    launch = WatchedLaunch(tmp_path_factory.mktemp("r"), patch)
    places = [RankPlace(f"node {node}", node, "127.0.0.1", 0) for node in nodes]
    patch.setattr(ports, "_places_here", lambda grid: places)
    with LLM(**options(place, grid)) as llm:
        yield Fickle(llm, launch.pids, place)
    launch.close()
    patch.undo()


def pytest_generate_tests(metafunc):
    if "fickle" in metafunc.fixturenames:
        metafunc.parametrize(("grid", "nodes"), GRIDS, scope="module")


@pytest.fixture(autouse=True)
def _none_chosen(place):
    yield
    (place / "pids").write_text("")


def check_error(error, text):
    assert isinstance(error, RequestFailedError | AdapterSourceError), error
    assert text in str(error.__cause__)


@pytest.fixture(params=["one", "all"])
def ranks(request, fickle):
    """The ranks that fail: the last one, or all."""
    every = range(len(fickle.pids))
    return list(every) if request.param == "all" else [every[-1]]


def test_a_forward_pass_that_fails_ends_its_request_alone(fickle, expected):
    for ranks in ([0], range(len(fickle.pids))):
        fickle.choose(*ranks)
        *others, error = fickle.generate([*PROMPTS, CURSED_PROMPT], GREEDY)
        assert others == expected[:3]
        check_error(error, "RuntimeError: a cursed token")
        assert fickle.generate(PROMPTS, GREEDY) == expected[:3]
    fickle.choose()
    assert fickle.generate([CURSED_PROMPT], GREEDY) == expected[3:4]


def test_a_sampler_step_that_fails_ends_its_request_alone(fickle, expected, ranks):
    raising = SamplingParams(
        temperature=0, max_tokens=12, ignore_eos=True, extra_args={"raising": True}
    )
    fickle.choose(*ranks)
    first, error, *others = fickle.generate(
        [PROMPTS[0], *PROMPTS], [GREEDY, raising, GREEDY, GREEDY]
    )
    assert [first, *others] == [expected[0], *expected[1:3]]
    check_error(error, "RuntimeError: a cursed row")
    fickle.choose()
    assert fickle.generate(PROMPTS, raising) == expected[:3]


def test_the_log_of_a_failed_step_names_the_rank_and_has_its_traceback(fickle, caplog):
    fickle.choose(0)
    fickle.generate([CURSED_PROMPT], GREEDY)
    assert f"worker 0 of {len(fickle.pids)}" in caplog.text
    assert f"process {fickle.pids[0]}" in caplog.text
    assert "RuntimeError: a cursed token" in caplog.text


def test_several_failing_requests_end_and_the_others_complete(fickle, expected):
    fickle.choose(0)
    prompts = [CURSED_PROMPT, PROMPTS[0], CURSED_PROMPT, PROMPTS[1], CURSED_PROMPT]
    found = fickle.generate(prompts, GREEDY)
    assert [found[1], found[3]] == expected[:2]
    for index in (0, 2, 4):
        check_error(found[index], "a cursed token")


def test_an_adapter_that_some_rank_cannot_load_ends_its_request_alone(fickle, expected, ranks):
    assert fickle.generate(PROMPTS[:1], GREEDY, "style1") == expected[5:6]  # the only one loaded
    fickle.choose(*ranks)
    adapters = [None, "style0", None, None]
    first, error, *others = fickle.generate([PROMPTS[0], *PROMPTS], GREEDY, adapters)
    assert [first, *others] == [expected[0], *expected[1:3]]
    check_error(error, "the disk is gone")
    fickle.choose()
    assert fickle.generate(PROMPTS[:1], GREEDY, "style0") == expected[4:5]


def test_a_new_adapter_is_used_once_all_ranks_have_loaded_it(fickle, expected, ranks):
    index = 2 if len(ranks) == 1 else 3
    given = unlisted(fickle.place, index)
    fickle.choose(*ranks)
    (refused,) = fickle.generate([PROMPTS[0]], GREEDY, given)
    check_error(refused, "the disk is gone")
    assert fickle.generate(PROMPTS, GREEDY) == expected[:3]
    fickle.choose()
    assert fickle.generate([PROMPTS[0]], GREEDY, given) == expected[4 + index : 5 + index]


@pytest.fixture
def launch(tmp_path, monkeypatch):
    yield from watched(tmp_path, monkeypatch)


def test_ranks_that_sample_different_tokens_end_the_engine(place, launch):
    lopsided = SamplingParams(temperature=0, max_tokens=12, extra_args={"lopsided": True})
    with LLM(**options(place, (2, 1))) as llm:
        llm.generate(PROMPTS, lopsided)
        Fickle(llm, launch.pids, place).choose(1)
        with pytest.raises(EngineDeadError, match="sampled different tokens") as caught:
            llm.generate(PROMPTS, lopsided)
        assert "rank 0: " in str(caught.value)
        assert "rank 1: " in str(caught.value)
        eventually(lambda: not launch.processes())


def test_workers_that_find_other_plugins_are_refused_with_every_difference(
    place, launch, monkeypatch, tmp_path
):
    site = tmp_path / "site"
    write_distribution(site, "swapping", {"swapping": "swapping_plugin"}, swapping_plugin=SWAPPING)
    write_distribution(
        site, "fickle2", {"fickle2": "fickle2_plugin"},
        fickle2_plugin=PLUGIN.replace('"FickleForCausalLM"', '"OtherForCausalLM"')
        .replace('"raising"', '"raising2"').replace('"lopsided"', '"lopsided2"')
        .replace('"fickle", ', '"other", '),
    )  # fmt: skip
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv(SWAPPED, str(site))
    given = options(place, (2, 1), executor="swapping", lora_source="other")
    with pytest.raises(PluginError, match="2 of 2 workers chose other parts") as caught:
        LLM(**given)
    lines = str(caught.value).splitlines()
    for rank, pid in enumerate(launch.pids):
        assert any(f"rank {rank}, process {pid}" in line for line in lines)
    for part in ("executors swapping swapping", "lora_sources other fickle2"):
        assert lines.count(f"-{part} 1.0") == 2, lines
        assert lines.count(f"+{part} 2.0") == 2, lines
    assert os.listdir(launch.sockets) == []
