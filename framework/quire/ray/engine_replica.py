"""One replica under Ray Serve: an engine, and quire's HTTP routes without a port of their own.

If the engine dies, the replica's process ends after a moment, in which its clients get the error.
Serve notices that at once and starts another one; a replica that only said that it is unhealthy
would be given requests until a few checks have failed.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import msgspec

from quire.compose.sizes.layer_specs import layer_specs
from quire.engine.kv_cache.kv_plan import NULL_BLOCKS, fixed_plan
from quire.errors import EngineDeadError
from quire.frontend.async_frontend import AsyncFrontend
from quire.launch.engine import Engine, start_engine
from quire.plugins.report import plugins_report
from quire.ray.cache_report import CacheReport
from quire.ray.serve_arguments import read_arguments
from quire.ray.serve_routing import ReplicaFacts, ReplicaLoad
from quire.server import asgi_call
from quire.server.app import control_operations, create_unguarded_app
from quire.server.asgi_call import HTTPCall
from quire.server.http.lifecycle import Lifecycle
from quire.server.routes.plugins.loaded_route import load_routes
from quire.server.stats_log import log_stats

DEATH_NOTICE_S = 0.5  # for clients to get the error of a dead engine

logger = logging.getLogger(__name__)


class EngineReplica:
    """An engine behind its HTTP routes; Serve calls its methods.

    Args:
        arguments: Options of quire by name.
    """

    async def __init__(self, arguments: dict[str, Any]) -> None:  # type: ignore[misc]
        settings = read_arguments({"engine_process": True} | arguments)
        engine = start_engine(settings, is_serving=True)
        self._facts = _facts(engine)
        self._frontend = engine.async_frontend()
        report = partial(plugins_report, engine.plugins)
        control = control_operations(self._frontend)  # the ingress says who has an admin key
        self._app = create_unguarded_app(
            self._frontend,
            report,
            Lifecycle(),
            control,
            load_routes(settings.server, engine.plugins.registries),
            has_lenient_fields=settings.server.lenient_fields,
        )
        self._num_resets = 0
        self._cache = CacheReport(self._facts.block_size)
        self._tasks = [
            asyncio.create_task(log_stats(self._frontend)),
            asyncio.create_task(_end_with_engine(self._frontend)),
        ]
        if self._facts.reports_changes:
            self._tasks.append(asyncio.create_task(_follow(self._frontend, self._cache)))

    async def respond(self, call: bytes, prompt: bytes | None = None) -> AsyncGenerator[bytes]:
        """Run an HTTP request; yield its response.

        Args:
            call: An `HTTPCall` as msgpack.
            prompt: The prompt for the router, which the request has, too.

        Raises:
            EngineDeadError: The engine died before the response began.
        """
        del prompt
        self._frontend.thread.check_alive()
        has_started = False
        decoded = msgspec.msgpack.decode(call, type=HTTPCall)
        async with aclosing(asgi_call.respond(self._app, decoded)) as items:
            async for item in items:
                if not has_started:
                    self._frontend.thread.check_alive()  # else the response is its error
                has_started = True
                yield item

    async def reset_prefix_cache(self, call: bytes) -> list[bytes]:
        """Run the request that clears the prefix cache; return its response."""
        self._num_resets += 1
        decoded = msgspec.msgpack.decode(call, type=HTTPCall)
        return [item async for item in asgi_call.respond(self._app, decoded)]

    async def check_health(self) -> None:
        """Raise an error if the engine is dead, or if its step hangs; Serve restarts it then.

        Raises:
            EngineDeadError: The replica must be replaced.
        """
        self._frontend.thread.check_alive()
        if self._frontend.is_stalled:
            raise EngineDeadError("a step of the engine hangs")

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Return what the router has to know of this replica once."""
        return dict(msgspec.to_builtins(self._facts))

    async def record_routing_stats(self) -> dict[str, Any]:
        """Return the present load, for the router."""
        # Not the engine's statistics, which are those of its last step.
        num_requests = len(self._frontend.dispatch.streams())
        changes = self._cache.report() if self._facts.reports_changes else []
        load = ReplicaLoad(num_requests, self._num_resets, changes)
        return dict(msgspec.to_builtins(load))


def _facts(engine: Engine) -> ReplicaFacts:
    """Return the facts of an engine that is used by nothing else yet."""
    specs = layer_specs(engine.settings, engine.composition, engine.plugins.registries)
    if not specs or not engine.settings.cache.enable_prefix_caching:
        return ReplicaFacts()
    num_groups = len(fixed_plan(specs, NULL_BLOCKS + 1).groups)
    num_blocks = engine.core.stats().num_blocks // max(1, num_groups)
    return ReplicaFacts(specs[0].block_size, num_blocks, engine.settings.cache.kv_events)


async def _follow(frontend: AsyncFrontend, report: CacheReport) -> None:
    """Pass the changes of the prefix cache on until the engine ends."""
    with suppress(EngineDeadError):
        async for batch in frontend.dispatch.kv_events.read():
            report.take(batch)


async def _end_with_engine(frontend: AsyncFrontend) -> None:
    """Wait for the engine to die, leave clients time to get the error, and end the process."""
    death = await frontend.controls.wait_for_death()
    logger.critical("the engine died, so this replica ends: %s", death.headline)
    await asyncio.sleep(DEATH_NOTICE_S)
    os._exit(1)  # Serve would take an exception of a task for one of a request
