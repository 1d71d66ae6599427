"""Plugins that fail, and the errors that a user gets."""

import json
from contextlib import contextmanager
from textwrap import dedent

import pytest
from acme_parts import Quire
from installed import write_distribution

IMPORT_ERROR = "import no_such_dependency"
HALF_WAY = """
    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities

    FLOAT = frozenset({"float32"})
    ANY = AttentionCapabilities(
        devices=frozenset({"cpu"}), dtypes=FLOAT, kv_dtypes=FLOAT, priority=-2
    )

    @hookimpl
    def register_attention_backends(registry):
        registry.add("half_way", "acme_quire.attention:PlainAttention", capabilities=ANY)

    @hookimpl
    def register_executors(registry):
        raise RuntimeError("the second half")
"""
OFFERS_NAME = HALF_WAY.replace("half_way", "NAME").partition(
    "    @hookimpl\n    def register_exec"
)[0]
MISSPELT = OFFERS_NAME.replace("register_attention_backends", "register_attention_backend")
API_9 = OFFERS_NAME.replace("capabilities=ANY", "capabilities=ANY, api=9")
NO_MODULE = OFFERS_NAME.replace("acme_quire.attention", "acme_quire.atention")
NO_CLASS = OFFERS_NAME.replace("PlainAttention", "attend")


@pytest.fixture
def beside(acme_site, tmp_path):
    """The command `quire` with the working distribution and others of one plugin module each."""

    def install(**sources):
        for name, source in sources.items():
            distribution = name.replace("_", "-")
            write_distribution(tmp_path / "site", distribution, {name: name}, **{name: source})
        return Quire(acme_site, tmp_path / "site")

    return install


def refusal(quire, *argv):
    done = quire.run(*argv)
    assert done.returncode == 1, done.stdout
    return done.stderr


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (IMPORT_ERROR, "ModuleNotFoundError: No module named 'no_such_dependency'"),
        (HALF_WAY, "RuntimeError: the second half"),
        (MISSPELT.replace("NAME", "x"), "did you mean 'register_attention_backends'?"),
    ],
)
def test_a_broken_plugin_stops_nothing_and_the_doctor_explains_it(
    beside, checkpoint, source, error
):
    quire = beside(acme_broken=source)
    explained = quire.run("explain", checkpoint)
    assert explained.returncode == 0, explained.stderr
    doctor = quire.run("plugins", "doctor")
    assert doctor.returncode == 1
    assert "plugin acme_broken (acme-broken 1.0) failed to load" in doctor.stdout
    assert error in doctor.stdout
    assert "Traceback (most recent call last):" in doctor.stdout
    listed = json.loads(quire.run("plugins", "list", "--json").stdout)
    states = {report["name"]: report["state"] for report in listed}
    assert states["acme_broken"] == "failed"
    assert states["acme_quire"] == "loaded"


def test_a_broken_plugin_that_is_named_refuses_to_start_with_its_traceback(beside, checkpoint):
    error = refusal(beside(acme_broken=IMPORT_ERROR), "serve", checkpoint, "-p", "acme_broken")
    assert "plugin acme_broken (acme-broken 1.0) failed to load" in error
    assert "acme_broken.py" in error
    assert "No module named 'no_such_dependency'" in error
    assert "[plugin_load_failed]" in error


def test_nothing_remains_of_a_plugin_that_failed_half_way(beside, checkpoint):
    quire = beside(acme_broken=HALF_WAY)
    error = refusal(quire, "serve", checkpoint, "--attention-backend", "half_way")
    assert "unknown attention backend 'half_way'" in error
    known = error.partition("known: ")[2].partition(")")[0].split(", ")
    assert {"acme_plain", "torch_sdpa"} <= set(known)
    assert "half_way" not in known
    assert "1 plugin failed to load, see `quire plugins doctor`" in error


def test_a_contested_name_is_fatal_only_when_it_is_selected(beside, checkpoint):
    same = OFFERS_NAME.replace("NAME", "acme_plain")
    quire = beside(acme_rival=same)
    assert quire.run("explain", checkpoint).returncode == 0
    error = refusal(quire, "serve", checkpoint, "--attention-backend", "acme_plain")
    assert "acme_quire (acme-quire 1.2.0) and acme_rival (acme-rival 1.0)" in error
    assert "--prefer attention_backends:acme_plain=acme_rival" in error
    assert "[contested_name]" in error
    assert "several plugins offer it" in quire.run("plugins", "list").stdout


@pytest.mark.parametrize(
    ("consent", "distribution"),
    [
        (("--prefer", "attention_backends:acme_plain=acme_rival"), "acme-rival"),
        (("--prefer", "attention_backends:acme_plain=acme_quire"), "acme-quire"),
        (("-p", "no:acme_rival"), "acme-quire"),
    ],
)
def test_the_user_decides_a_contested_name(beside, checkpoint, consent, distribution):
    quire = beside(acme_rival=OFFERS_NAME.replace("NAME", "acme_plain"))
    argv = ("explain", checkpoint, "--attention-backend", "acme_plain", *consent, "--json")
    parts = json.loads(quire.run(*argv).stdout)["parts"]
    (chosen,) = [part for part in parts if part["kind"] == "attention_backends"]
    assert chosen["distribution"] == distribution
    assert quire.run("plugins", "doctor", *consent).returncode == 0


def test_two_distributions_may_use_one_entry_point_name(acme_site, tmp_path):
    for number in ("one", "two"):
        source = OFFERS_NAME.replace("NAME", f"acme_{number}")
        write_distribution(
            tmp_path, f"acme-{number}", {"acme": f"acme_{number}"}, **{f"acme_{number}": source}
        )
    reports = json.loads(Quire(acme_site, tmp_path).run("plugins", "list", "--json").stdout)
    names = {report["name"]: report["state"] for report in reports}
    assert names["acme@acme-one"] == names["acme@acme-two"] == "loaded"


def test_another_version_of_an_interface_is_refused(beside, checkpoint):
    quire = beside(acme_future=API_9.replace("NAME", "future"))
    explained = quire.run("explain", checkpoint)
    assert "not future: interface version 9 is not supported" in explained.stdout
    error = refusal(quire, "serve", checkpoint, "--attention-backend", "future")
    assert "'future' of acme_future (acme-future 1.0) has interface version 9" in error
    assert "this quire supports 1: upgrade quire [api_version]" in error
    assert "has interface version 9" in quire.run("plugins", "doctor").stdout


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (NO_MODULE, "refers to 'acme_quire.atention:PlainAttention', and there is no such module"),
        (NO_CLASS, "is not a subclass of quire.interfaces.attention.KVBackend"),
    ],
)
def test_missing_code_is_an_error_only_if_selected(beside, checkpoint, source, reason):
    quire = beside(acme_broken=source.replace("NAME", "absent"))
    error = refusal(quire, "run", checkpoint, "x", "--attention-backend", "absent")
    assert "attention backend 'absent' of acme_broken (acme-broken 1.0)" in error
    assert reason in error
    assert "[plugin_load_failed]" in error
    assert error.count("Traceback") == 0


FAULTS = """
    from acme_quire.attention import PlainAttention
    from acme_quire.tool_parser import AcmeCalls
    from quire.interfaces.sampling import LogitsProcessor

    class FaultyAttention(PlainAttention):
        def prepare(self, step):
            if 41 in step.query_lens_host:
                raise RuntimeError("attention fails on 41 tokens")
            return super().prepare(step)

        def forward(self, q, k, v, kv_cache, metadata, layer):
            out = super().forward(q, k, v, kv_cache, metadata, layer)
            return out[:1] if 43 in metadata.query_lens_host else out

    class BrokenAttention(PlainAttention):
        def forward(self, q, k, v, kv_cache, metadata, layer):
            raise RuntimeError("attention always fails")

    class FaultyStep(LogitsProcessor):
        def is_neutral(self, fields):
            if fields["fault_neutral"]:
                raise RuntimeError("the question fails")
            return not (fields["fault_step"] or fields["fault_shape"])

        def apply(self, logits, rows):
            if rows.field("fault_step").any():
                raise RuntimeError("the step fails")
            return logits[:1].double() if rows.field("fault_shape").any() else logits

    class FaultyCalls(AcmeCalls):
        def feed(self, delta):
            if "!" in delta:
                raise RuntimeError("the parser fails")
            return super().feed(delta)
"""
FAULTS_PLUGIN = """
    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities
    from quire.interfaces.sampling import RequestField, SamplerCapabilities
    from quire.interfaces.tool_parsing import ToolParserCapabilities

    FLOAT = frozenset({"float32"})
    ANY = AttentionCapabilities(devices=frozenset({"cpu"}), dtypes=FLOAT, kv_dtypes=FLOAT)
    FIELDS = tuple(
        RequestField(f"fault_{name}", bool, False) for name in ("step", "shape", "neutral", "hook")
    )

    @hookimpl
    def register_attention_backends(registry):
        registry.add("faulty", "acme_faults.parts:FaultyAttention", capabilities=ANY)
        registry.add("broken", "acme_faults.parts:BrokenAttention", capabilities=ANY)

    @hookimpl
    def register_samplers(registry):
        capabilities = SamplerCapabilities(stage="bias", fields=FIELDS)
        registry.add("faulty", "acme_faults.parts:FaultyStep", capabilities=capabilities)

    @hookimpl
    def register_tool_parsers(registry):
        capabilities = ToolParserCapabilities()
        registry.add("faulty", "acme_faults.parts:FaultyCalls", capabilities=capabilities)

    @hookimpl
    def request_received(request):
        if request.params.extra_args["fault_hook"]:
            raise RuntimeError("the hook fails")

    @hookimpl
    def request_finished(request, output):
        raise RuntimeError("the late hook fails")
"""
PROMPT = "All is well"
NUM_TOKENS = 220


class Served:
    """A server with parts that fail for some requests, and its log."""

    def __init__(self, client, log):
        self.client = client
        self.log = log

    def complete(self, prompt=PROMPT, **fields):
        body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, **fields}
        return self.client.post("/v1/completions", json=body)

    @contextmanager
    def stream(self):
        """Yield the pieces of the prompt's completion while they are generated."""
        body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "stream": True}
        with self.client.stream("POST", "/v1/completions", json=body) as response:
            yield (
                json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                for line in response.iter_lines()
                if line.startswith("data: {")
            )

    def chat(self, **fields):
        body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, **fields}
        return self.client.post("/v1/chat/completions", json=body)


@pytest.fixture(scope="module")
def served(acme_site, checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    write_distribution(
        folder,
        "acme-faults",
        {"acme_faults": "acme_faults.plugin"},
        acme_faults____init__="",
        acme_faults__plugin=FAULTS_PLUGIN,
        acme_faults__parts=FAULTS,
    )
    write_distribution(folder, "acme-broken", {"broken": "broken"}, broken=dedent(HALF_WAY))
    flags = (
        "--attention-backend", "faulty", "--tool-call-parser", "faulty",
        "--samplers", "default", "faulty",
    )  # fmt: skip
    log = folder / "log"
    with Quire(acme_site, folder).serve(log, checkpoint, *flags) as client:
        yield Served(client, log)


def test_a_server_starts_with_a_broken_plugin_and_logs_it(served):
    assert served.client.get("/readyz").status_code == 200
    log = served.log.read_text()
    assert "broken (acme-broken 1.0) failed to load: RuntimeError: the second half" in log
    states = {r["name"]: r["state"] for r in served.client.get("/v1/plugins").json()["data"]}
    assert (states["broken"], states["acme_faults"]) == ("failed", "loaded")


FAILURES = {
    "hook": {"fault_hook": True},
    "step": {"fault_step": True},
    "neutral": {"fault_neutral": True},
    "attention": {"prompt": "x" * 41},
    "shape of logits": {"fault_shape": True},
    "shape of attention": {"prompt": "x" * 43},
}


@pytest.mark.parametrize("fault", FAILURES)
def test_a_part_that_fails_ends_its_own_request_only(served, fault):
    alone = served.complete().json()["choices"][0]["text"]
    with served.stream() as sound:
        first = next(sound)  # it runs
        failed = served.complete(**FAILURES[fault])
        text = first + "".join(sound)
    assert failed.status_code == 500
    assert text == alone
    assert served.complete().json()["choices"][0]["text"] == alone


@pytest.mark.parametrize(
    ("fault", "message"),
    [("step", "sampling failed for 2 request(s)"), ("attention", "failed for 2 request(s)")],
)
def test_the_other_request_was_in_the_same_batch(served, fault, message):
    with served.stream() as sound:
        next(sound)
        served.complete(**FAILURES[fault])
    assert message in served.log.read_text()


@pytest.mark.parametrize(
    ("fault", "message", "logged"),
    [
        ("hook", "plugin acme_faults (acme-faults 1.0) failed on this request", "the hook fails"),
        (
            "step",
            "sampler 'faulty' of plugin acme_faults (acme-faults 1.0) failed: RuntimeError",
            "the step fails",
        ),
        (
            "neutral",
            "sampler 'faulty' of plugin acme_faults (acme-faults 1.0) failed: RuntimeError",
            "the question fails",
        ),
        (
            "attention",
            "attention backend 'faulty' of plugin acme_faults (acme-faults 1.0) failed: RuntimeE",
            "attention fails on 41 tokens",
        ),
    ],
)
def test_the_client_gets_the_failed_plugin_and_the_log_has_the_cause(
    served, fault, message, logged
):
    error = served.complete(**FAILURES[fault]).json()["error"]
    assert message in error["message"]
    assert error["code"] == "request_failed"
    assert "Traceback" not in error["message"]
    log = served.log.read_text()
    assert f"RuntimeError: {logged}" in log
    assert "acme_faults" in log


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "shape of logits",
            "sampler 'faulty' of plugin acme_faults (acme-faults 1.0) returned a float64 tensor of "
            "shape [1, 272] on cpu; it must return a float32 tensor of shape [1, 272] on cpu",
        ),
        (
            "shape of attention",
            "attention backend 'faulty' of plugin acme_faults (acme-faults 1.0) of layer layers.0",
        ),
    ],
)
def test_a_result_of_another_shape_or_type_is_an_error(served, fault, message):
    error = served.complete(**FAILURES[fault]).json()["error"]
    assert message in error["message"]
    assert error["code"] == "request_failed"


def test_a_part_that_always_fails_is_never_ready(served, acme_site, checkpoint):
    quire = Quire(acme_site, served.log.parent)
    error = refusal(quire, "serve", checkpoint, "--attention-backend", "broken")
    assert "attention backend 'broken' of plugin acme_faults (acme-faults 1.0)" in error
    assert "RuntimeError: attention always fails" in error
    assert "[refused]" in error


def test_a_failure_in_a_stream_is_its_last_event(served):
    response = served.complete(**FAILURES["step"], stream=True)
    assert "request_failed" in response.text


def test_a_tool_parser_that_fails_ends_its_own_request_only(served):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    failed = served.chat(tools=[tool], structured_outputs={"regex": "Oh!"}, max_tokens=10)
    assert failed.status_code == 500
    assert "plugin acme_faults (acme-faults 1.0)" in failed.json()["error"]["message"]
    sound = served.chat(tools=[tool], structured_outputs={"regex": "Ah[.]"}, max_tokens=10)
    assert sound.json()["choices"][0]["message"]["content"] == "Ah."


def test_a_hook_that_fails_after_the_completion_is_only_logged(served):
    assert served.complete().status_code == 200
    log = served.log.read_text()
    assert "plugin acme_faults (acme-faults 1.0) failed in request_finished" in log
    assert "RuntimeError: the late hook fails" in log


def test_the_server_is_alive_after_all_of_it(served):
    assert served.client.get("/livez").status_code == 200
    assert served.client.get("/readyz").status_code == 200
