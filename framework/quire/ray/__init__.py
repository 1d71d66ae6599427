"""quire under Ray Serve, which scales, routes to and restarts replicas on many machines.

    serve run quire.ray:app model=Qwen/Qwen3-0.6B

application     `app`, which Serve runs: an ingress in front of replicas of the engine
engine_replica  one replica: an engine and quire's HTTP routes
ingress         HTTP in front of the replicas: the guard, the prompt's tokens, and retries
prompt_reader   tokens of a request's prompt, for the router
prefix_router   Serve's request router, which chooses the replica of a request
cache_report    changes of a replica's prefix cache, for the routers
serve_routing   placement on replicas that come and go, without Ray
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.ray.application import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """Import the application on first use, so that parts without Ray are imported without it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module("quire.ray.application").app
    except ModuleNotFoundError as error:
        if error.name == "ray":
            raise ImportError("quire.ray needs Ray Serve: pip install 'quire[ray]'") from error
        raise
