"""Parts that this machine cannot run are not chosen, and the reason is reported."""

import logging
import sys
import threading
import types
from functools import partial

import pytest
from installed import sites
from native_libraries import failing_library

from quire import LLM, SamplingParams
from quire.compose.choices import probes
from quire.compose.choices.probes import KnownProbes, run_probes
from quire.config import Settings
from quire.errors import PluginError, RefusedError
from quire.interfaces.attention import AttentionCapabilities
from quire.interfaces.quantization import QuantizationCapabilities
from quire.interfaces.sampling import SamplerCapabilities
from quire.launch.composing import plan_composition
from quire.native.availability import native_unavailable_reason
from quire.native.layer_kernels import libraries
from quire.testing.checkpoints import write_checkpoint
from quire_attention_backends.cpu import cpu_library
from quire_quantizations import linear_library
from quire_samplers.gumbel import cpu_gumbel_library

site = pytest.fixture(sites)

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
NEEDS_KERNELS = pytest.mark.skipif(
    native_unavailable_reason() is not None,
    reason="native kernels are chosen where they can run",
)
BACKENDS = """
    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities

    def has_no_library():
        return "acme has no library\\nand says more"

    def breaks():
        raise OSError("no such device")

    @hookimpl
    def register_attention_backends(registry):
        def add(name, probe, priority, block_size):
            there = AttentionCapabilities(
                devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}),
                kv_dtypes=frozenset({"float32"}), block_sizes=frozenset({block_size}),
                default_block_size=block_size, priority=priority, probe=f"acme:{probe}",
            )
            registry.add(name, "acme:Backend", capabilities=there)

        add("acme_first", "has_no_library", 1000, 64)
        add("acme_second", "breaks", 900, 128)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM").folder)


PARTS = {
    "layers": (libraries, "LAYERS"),
    "attention": (cpu_library, "LIBRARY"),
    "weights": (linear_library, "LIBRARY"),
    "sampler": (cpu_gumbel_library, "LIBRARY"),
}


def break_part(part, monkeypatch, tmp_path):
    monkeypatch.setattr(*PARTS[part], failing_library(tmp_path))


@pytest.fixture(params=PARTS)
def broken_part(request, tmp_path, monkeypatch):
    """The kernels of one part do not compile, and those of all others do."""
    break_part(request.param, monkeypatch, tmp_path)
    return request.param


def generate_tokens(folder, **options):
    with LLM(folder, max_num_seqs=2, **options) as llm:
        (output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], GREEDY)
        return output.outputs[0].token_ids, llm.composition


@pytest.mark.parametrize("engine_process", [False, True], ids=["here", "process"])
def test_a_backend_whose_probe_gives_a_reason_is_not_chosen(site, folder, caplog, engine_process):
    expected, _ = generate_tokens(folder, attention_backend="torch_sdpa")
    site.install("acme", BACKENDS)
    planned = plan_composition(Settings.from_options({"model": folder}))
    assert [choice.name for choice in planned.attention_backends] == ["acme_first"]
    assert planned.block_size == 64
    tokens, composition = generate_tokens(folder, engine_process=engine_process)
    assert list(tokens) == list(expected)
    (backend,) = composition.attention_backends
    assert backend.entry.source.distribution == "quire"
    assert composition.block_size == 16
    reasons = {rejection.name: rejection.reason for rejection in backend.rejected}
    assert reasons["acme_first"] == "acme has no library"
    assert reasons["acme_second"] == "its probe failed: OSError: no such device"
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    first, second = (line for line in warnings if "acme" in line)
    assert first.startswith("attention backend 'acme_first' of plugin acme")
    assert first.endswith("and other parts are used instead: acme has no library\nand says more")
    assert "OSError: no such device" in second
    assert "Traceback" in second


def test_a_named_backend_whose_probe_gives_a_reason_stops_the_start(site, folder):
    site.install("acme", BACKENDS)
    with pytest.raises(RefusedError, match="'acme_first' cannot serve this model: acme has no lib"):
        generate_tokens(folder, attention_backend="acme_first")


def test_a_probe_is_an_import_string():
    none = frozenset()
    for declare in (
        partial(SamplerCapabilities, stage="filter"),
        partial(QuantizationCapabilities, none, none),
        partial(AttentionCapabilities, devices=none, dtypes=none, kv_dtypes=none),
    ):
        with pytest.raises(PluginError, match=r"probe must read 'package.module:attribute'"):
            declare(probe="acme")


def test_probes_run_at_the_same_time():
    meeting = threading.Barrier(2, timeout=20)
    module = types.ModuleType("meeting")
    module.first = module.second = lambda: str(meeting.wait() > 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "meeting", module)
        reasons = run_probes({"meeting:first": "one", "meeting:second": "another"})
    assert reasons == {"meeting:first": "False", "meeting:second": "False"}


def test_nothing_to_probe_is_no_reason():
    assert run_probes({}) == {}


@pytest.fixture
def acme(monkeypatch):
    """Return a function that makes a probe of a function."""

    def probe(function):
        module = types.ModuleType("acme_probes")
        module.probe = function
        monkeypatch.setitem(sys.modules, "acme_probes", module)
        return "acme_probes:probe"

    return probe


@pytest.mark.parametrize("returned", [True, False, "", 5])
def test_a_probe_that_returns_no_text_is_a_reason(acme, returned):
    reference = acme(lambda: returned)
    reason = f"its probe returned {returned!r}, not a reason or None"
    assert run_probes({reference: "a part"}) == {reference: reason}


def test_a_probe_that_exits_is_a_reason(acme):
    (reason,) = run_probes({acme(lambda: sys.exit(3)): "a part"}).values()
    assert reason.startswith("its probe failed: SystemExit: 3")


def test_a_probe_that_cannot_be_imported_is_a_reason():
    (reason,) = run_probes({"no_such_module:probe": "a part"}).values()
    assert reason.startswith("its probe failed: PluginLoadError: its probe could not be imported")


def test_a_slow_probe_is_named_in_the_log(acme, monkeypatch, caplog):
    monkeypatch.setattr(probes, "PATIENCE_S", 0.05)
    ended = threading.Event()
    reference = acme(lambda: None if ended.wait(20) else "late")
    threading.Timer(0.5, ended.set).start()
    with caplog.at_level(logging.INFO):
        assert run_probes({reference: "the part of acme"}) == {reference: None}
    assert "waiting for the compilation of the part of acme" in caplog.text


def test_an_interrupt_ends_the_wait_for_a_probe(acme, monkeypatch):
    def interrupt(futures, timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr(probes, "wait", interrupt)
    ended = threading.Event()
    reference = acme(lambda: str(ended.wait(20)))
    with pytest.raises(KeyboardInterrupt):
        run_probes({reference: "a part"})
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "probe")
    ended.set()


REFUSING = """
    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities
    from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend

    def refuses(query):
        if query.head_dim % 2 == 0:
            return f"it serves odd heads, and this one has {query.head_dim} elements"

    class Late(TorchSDPABackend):
        def __init__(self, shape):
            from quire.errors import RefusedError
            raise RefusedError("no even heads")

    @hookimpl
    def register_attention_backends(registry):
        def add(name, **more):
            there = AttentionCapabilities(
                devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}),
                kv_dtypes=frozenset({"float32"}), **more,
            )
            registry.add(name, "acme:Late", capabilities=there)

        add("odd", priority=1000, refuses="acme:refuses")
        add("late", priority=-1000)
"""


def test_a_backend_may_refuse_the_layers_of_a_model(site, folder):
    site.install("acme", REFUSING)
    _, composition = generate_tokens(folder)
    (backend,) = composition.attention_backends
    reasons = {rejection.name: rejection.reason for rejection in backend.rejected}
    assert reasons["odd"] == "it serves odd heads, and this one has 16 elements"
    with pytest.raises(RefusedError, match="'odd' cannot serve this model: it serves odd heads"):
        generate_tokens(folder, attention_backend="odd")


def test_a_backend_that_refuses_when_it_is_built_is_named_with_the_way_out(site, folder):
    site.install("acme", REFUSING)
    with pytest.raises(RefusedError, match=r"'late' of plugin acme .*: no even .*--attention-bac"):
        generate_tokens(folder, attention_backend="late")


@NEEDS_KERNELS
def test_one_cause_is_one_warning(folder, tmp_path, monkeypatch, caplog):
    for part in ("weights", "sampler", "attention"):
        break_part(part, monkeypatch, tmp_path)
    with caplog.at_level(logging.WARNING):
        generate_tokens(folder)
    (warning,) = (
        r.getMessage() for r in caplog.records if "cannot run on this machine" in r.getMessage()
    )
    for part in (
        "attention backend 'cpu'",
        "sampler 'cpu_gumbel'",
        "quantization method 'float32'",
    ):
        assert part in warning
    assert "this is no C++" in warning


@NEEDS_KERNELS
def test_layers_whose_kernels_do_not_compile_run_torch(folder, tmp_path, monkeypatch):
    break_part("layers", monkeypatch, tmp_path)
    tokens, composition = generate_tokens(folder)
    assert composition.kernels.value == "torch"
    assert composition.machine.native_unavailable_reason == composition.kernels.reason
    assert list(tokens) == list(generate_tokens(folder, kernels="torch")[0])


@NEEDS_KERNELS
@pytest.mark.parametrize(
    ("part", "option", "name"),
    [
        ("attention", "attention_backend", "cpu"),
        ("weights", "quantization", "int8"),
        ("sampler", "samplers", ["cpu_gumbel"]),
    ],
)
def test_a_named_part_whose_kernels_do_not_compile_stops_the_start(
    folder, tmp_path, monkeypatch, part, option, name
):
    break_part(part, monkeypatch, tmp_path)
    with pytest.raises(
        RefusedError, match=r"(cannot serve this model|cannot be used here): .*g\+\+"
    ):
        generate_tokens(folder, **{option: name})


@NEEDS_KERNELS
def test_any_part_whose_named_kernels_do_not_compile_stops_the_start(folder, broken_part):
    with pytest.raises(RefusedError, match=r"--kernels native: .* cannot be used here: .*g\+\+"):
        generate_tokens(folder, kernels="native")


@NEEDS_KERNELS
def test_without_the_kernels_of_adapters_layers_run_torch_where_adapters_are_served(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(libraries, "ADAPTERS", failing_library(tmp_path))
    with pytest.raises(RefusedError, match="--kernels native: the native kernels of adapters"):
        generate_tokens(folder, kernels="native", enable_lora=True)
    assert generate_tokens(folder, enable_lora=True)[1].kernels.value == "torch"
    assert generate_tokens(folder)[1].kernels.value == "native"


@NEEDS_KERNELS
def test_an_installed_part_that_cannot_run_does_not_stop_named_kernels(site, folder):
    site.install("acme", BACKENDS)
    _, composition = generate_tokens(folder, kernels="native")
    assert [choice.name for choice in composition.attention_backends] == ["cpu"]


@NEEDS_KERNELS
def test_parts_that_do_not_need_what_failed_keep_their_kernels(folder, broken_part):
    tokens, composition = generate_tokens(folder)
    assert list(tokens) == list(generate_tokens(folder, kernels="torch")[0])
    (attention,) = composition.attention_backends
    seen = {
        "layers": composition.kernels.value,
        "attention": attention.name,
        "weights": composition.weights.partition(":")[0],
        "sampler": composition.samplers[-1].name,
    }
    whole = {
        "layers": "native",
        "attention": "cpu",
        "weights": "float32 (auto",
        "sampler": "cpu_gumbel",
    }
    lost = {
        "layers": {"layers": "torch", "attention": "torch_sdpa", "sampler": "torch_gumbel"},
        "attention": {"attention": "torch_sdpa"},
        "weights": {},
        "sampler": {"sampler": "torch_gumbel"},
    }
    assert (composition.quantization.value is None) == (broken_part in ("weights", "layers"))
    assert seen == whole | lost[broken_part]


@NEEDS_KERNELS
@pytest.mark.parametrize("name", ["none", "int8", "int4", "auto"])
def test_dummy_weights_may_have_any_quantization(folder, name):
    _, composition = generate_tokens(folder, load_format="dummy", quantization=name)
    if name not in ("auto", "none"):
        assert composition.quantization.value.name == name


def test_a_probe_whose_result_another_process_has_is_not_run_again(acme):
    calls = []
    reference = acme(lambda: calls.append(1))
    first = KnownProbes()
    assert first({reference: "a part"}) == {reference: None}
    assert first({reference: "a part"}) == {reference: None}
    second = KnownProbes({**first.results, "no_such_module:probe": "it is not there"})
    wanted = {reference: "a part", "no_such_module:probe": "another"}
    assert second(wanted) == {reference: None, "no_such_module:probe": "it is not there"}
    assert calls == [1]
