"""The manifests name ports, routes, flags, files and metrics that exist, and times that fit."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from package_environment import UnreachableIndexError, package_environment

from quire.cli.options import all_options
from quire.config import ServerSettings
from quire.server.observe.quire_metrics import QUIRE_METRICS

ROOT = Path(__file__).parents[2]
KUBERNETES = ("1.28", "1.31", "1.37")  # the oldest, the newest and one between them
EXIT_S = 2  # after the end of the grace period, as docs/reliability.md promises
FLAGS = {option.flag: option for option in all_options()}
HEALTH_ROUTES = {"/livez", "/readyz", "/health"}


@pytest.fixture(scope="module")
def manifests(deploy):
    files = sorted((deploy / "kubernetes").glob("**/*.yaml"))
    documents = [d for file in files for d in yaml.safe_load_all(file.read_text())]
    return {(d["kind"], d["metadata"]["name"]): d for d in documents if "kind" in d}


@pytest.fixture(scope="module")
def pod(manifests):
    return manifests["Deployment", "quire"]["spec"]["template"]


@pytest.fixture(scope="module")
def container(pod):
    (found,) = pod["spec"]["containers"]
    return found


@pytest.fixture(scope="module")
def flags(container):
    model, *flags = container["args"]
    assert not model.startswith("-")
    return dict(flag.partition("=")[::2] for flag in flags)


def test_flags_are_options(flags):
    assert set(flags) <= set(FLAGS)


def test_ports_are_those_that_the_server_listens_on(manifests, container, flags):
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": int(flags["--port"]), "health": int(flags["--health-port"])}
    for name in ("quire", "quire-metrics"):
        (port,) = manifests["Service", name]["spec"]["ports"]
        assert port["targetPort"] in ports


def test_probes_ask_routes_that_exist_on_ports_that_have_them(container):
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    asked = {name: (p["httpGet"]["path"], p["httpGet"]["port"]) for name, p in probes.items()}
    assert asked == {
        "startup": ("/readyz", "health"),
        "liveness": ("/livez", "http"),
        "readiness": ("/readyz", "health"),
    }
    assert {path for path, _ in asked.values()} <= HEALTH_ROUTES


def test_a_model_has_minutes_to_load_and_a_busy_server_is_not_restarted(container):
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60


def test_the_grace_period_covers_what_an_ending_takes(pod, container, flags):
    waits = float(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    drains = float(flags["--shutdown-timeout-s"])
    assert drains == ServerSettings().shutdown_timeout_s  # the page names this number
    assert pod["spec"]["terminationGracePeriodSeconds"] >= waits + drains + EXIT_S


def test_the_container_has_no_privileges(pod, container, deploy):
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    user = pod["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (deploy / "Dockerfile").read_text()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_services_do_not_set_variables_that_are_options(pod):
    assert pod["spec"]["enableServiceLinks"] is False  # QUIRE_PORT=tcp://10.0.0.1:80


def test_keys_come_as_a_file_from_a_secret(manifests, pod, container, flags):
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "keys"]
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "keys"]
    secret = manifests["Secret", volume["secret"]["secretName"]]
    (name,) = secret["stringData"]
    assert flags["--api-key-file"] == f"{mount['mountPath']}/{name}"
    assert yaml.safe_load(secret["stringData"][name]) == {"keys": []}  # no key that all know


def test_every_volume_is_mounted_and_every_mount_has_a_volume(pod, container):
    volumes = [volume["name"] for volume in pod["spec"]["volumes"]]
    assert sorted(volumes) == sorted(mount["name"] for mount in container["volumeMounts"])


def test_objects_select_the_pods(manifests, pod):
    labels = pod["metadata"]["labels"].items()
    selectors = [
        manifests["Deployment", "quire"]["spec"]["selector"]["matchLabels"],
        manifests["PodDisruptionBudget", "quire"]["spec"]["selector"]["matchLabels"],
        manifests["Service", "quire"]["spec"]["selector"],
        manifests["Service", "quire-metrics"]["spec"]["selector"],
    ]
    assert all(selector and selector.items() <= labels for selector in selectors)
    monitor = manifests["ServiceMonitor", "quire"]["spec"]
    metrics = manifests["Service", "quire-metrics"]
    assert monitor["selector"]["matchLabels"].items() <= metrics["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == metrics["spec"]["ports"][0]["name"]


def test_the_autoscaler_reads_a_metric_that_the_adapter_offers(manifests, deploy, flags):
    scaler = manifests["HorizontalPodAutoscaler", "quire"]["spec"]
    (metric,) = [m["pods"]["metric"]["name"] for m in scaler["metrics"]]
    assert metric in {each.name for each in QUIRE_METRICS if each.kind == "gauge"}
    assert scaler["scaleTargetRef"]["name"] == "quire"
    assert "replicas" not in manifests["Deployment", "quire"]["spec"]  # `apply` would reset it
    adapter = deploy / "kubernetes" / "optional" / "prometheus_adapter.yaml"
    (rule,) = yaml.safe_load(adapter.read_text())["rules"]["custom"]
    assert rule["name"]["as"] == metric
    assert rule["seriesQuery"].startswith(metric + "{")
    assert {"--open-metrics", "--health-port"} <= set(flags)  # open on the health port only


def test_the_image_has_the_version_of_the_package(container):
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert container["image"] == f"quire:{version[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("version", KUBERNETES)
def test_the_schemas_of_kubernetes_accept_the_manifests(deploy, version):
    try:
        programs = package_environment(Path(__file__).parent / "requirements", "linters")
    except UnreachableIndexError as error:
        pytest.skip(str(error))
    files = [*(deploy / "kubernetes").glob("*.yaml"), deploy / "kubernetes/optional/secret.yaml"]
    command = [programs / "kubernetes-validate", "--strict", "-k", version, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed") >= len(files)
