"""`app`: the application for Ray Serve.

client -> Serve's proxy -> Ingress -> PrefixRouter -> Engine (one of the replicas)
"""

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from quire.ray.engine_replica import EngineReplica
from quire.ray.ingress import Ingress
from quire.ray.serve_arguments import read_arguments

MAX_INGRESS_REQUESTS = 4096  # of one ingress at a time
MAX_ENGINE_REQUESTS = 256  # of one replica at a time; more wait in the router
HEALTH_PERIOD_S = 2.0
REPORT_PERIOD_S = 1.0
DRAIN_S = 30.0  # for the running requests of a replica that is stopped


def app(arguments: dict[str, Any]) -> Application:
    """Return the application; its deployments are `Ingress` and `Engine`.

    Args:
        arguments: Options of quire by name, such as `model`.

    Raises:
        SettingsError: An option does not exist, or its value is invalid.
    """
    read_arguments(arguments)  # so that a mistake is said before anything is deployed
    router = RequestRouterConfig(
        request_router_class="quire.ray.prefix_router.PrefixRouter",
        request_routing_stats_period_s=REPORT_PERIOD_S,
    )
    engine = serve.deployment(
        EngineReplica,
        name="Engine",
        max_ongoing_requests=MAX_ENGINE_REQUESTS,
        health_check_period_s=HEALTH_PERIOD_S,
        graceful_shutdown_timeout_s=DRAIN_S,
        request_router_config=router,
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="Ingress",
        max_ongoing_requests=MAX_INGRESS_REQUESTS,
        graceful_shutdown_timeout_s=DRAIN_S,
    )
    return ingress.bind(engine.bind(arguments), arguments)
