"""The ASGI application: all HTTP routes, behind one guard middleware."""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.config import ServerSettings
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.unknown_fields import UnknownFields
from quire.server.http.early_refusals import EarlyRefusals
from quire.server.http.entry_checks import METRICS_PATH, EntryChecks
from quire.server.http.guard import Guard
from quire.server.http.lifecycle import Lifecycle
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.keys.accounts import Accounts
from quire.server.observe.monitor import Monitor, ObservedApp
from quire.server.observe.readings import Readings
from quire.server.pages.page_routes import page_operations
from quire.server.routes.anthropic.bodies import MessagesBody
from quire.server.routes.anthropic.operations import MESSAGES_PATH, anthropic_operations
from quire.server.routes.api_description import ApiDescription
from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.health import HealthRoutes
from quire.server.routes.key_admin import AccountRoutes, KeyList, UsageList
from quire.server.routes.live.live_routes import live_operations
from quire.server.routes.load import LoadRoute, ServerLoad
from quire.server.routes.metrics import MetricsRoute
from quire.server.routes.models import ModelCard, ModelList, ModelRoutes
from quire.server.routes.ollama.operations import OLLAMA_BODIES, ollama_operations
from quire.server.routes.openai.chat_completions import ChatRoute
from quire.server.routes.openai.completions import CompletionRoute
from quire.server.routes.operation import Operation
from quire.server.routes.plugins.loaded_route import LoadedRoute, check_paths
from quire.server.routes.plugins.plugin_route import plugin_operations
from quire.server.routes.prefix_cache import CacheRoutes
from quire.server.routes.responses.mcp.server_tools import ServerTools
from quire.server.routes.responses.response_operations import RESPONSES_PATH, response_operations
from quire.server.routes.router import ErrorResponses, HTTPRouter
from quire.server.routes.tokenize import DetokenizedText, TokenRoutes, Tokens
from quire.server.tool_servers.tool_servers import ToolServers
from quire.server.wire.common_fields import QueuedBody
from quire.server.wire.protocol import (
    ChatBody,
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from quire.server.wire.responses import ResponseBody

CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"
QUEUED_BODIES: dict[str, type[QueuedBody]] = {
    CHAT_PATH: ChatBody,
    COMPLETION_PATH: CompletionBody,
    MESSAGES_PATH: MessagesBody,
    **OLLAMA_BODIES,
    RESPONSES_PATH: ResponseBody,
}


def create_app(
    frontend: AsyncFrontend,
    settings: ServerSettings,
    plugins_report: Callable[[], list[dict[str, Any]]],
    lifecycle: Lifecycle | None = None,
    accounts: Accounts | None = None,
    monitor: Monitor | None = None,
    routes: Sequence[LoadedRoute] = (),
    tool_servers: ToolServers | None = None,
) -> "App":
    """Return the ASGI application.

    Args:
        frontend: Frontend that serves the requests.
        settings: Address, API key and limits; `serve` does the listening.
        plugins_report: Function that returns a dict per plugin, for /v1/plugins.
        lifecycle: State shared with the code that drains the server; None for a new one.
        accounts: Accounts of the keys, with their usage; None to load them from the settings.
        monitor: Metrics, traces and access log; None for new ones.
        routes: Routes of plugins.
        tool_servers: Tool servers whose tools responses may call; None for none.

    Raises:
        PluginError: A route of a plugin has one of quire's paths.
    """
    lifecycle = lifecycle or Lifecycle()
    lifecycle.wait_s = lambda: frontend.dispatch.backlog.wait_s
    accounts = accounts or Accounts.load(settings)
    accounts.check(has_priorities=frontend.intake.has_priorities)
    monitor = monitor or Monitor(frontend, settings, lifecycle, accounts)
    control = control_operations(frontend) + account_operations(accounts)
    router = _router(
        frontend,
        plugins_report,
        lifecycle,
        control if accounts.has_admin else [],
        monitor,
        settings,
        routes,
        tool_servers or ToolServers.none(),
    )
    check_paths(routes, control)  # also if there is no admin key
    checks = EntryChecks(settings, lifecycle, accounts)
    of_plugins = {r.capabilities.path: None for r in routes if r.capabilities.generates}
    bodies = QUEUED_BODIES | of_plugins
    refusals = EarlyRefusals(frontend, checks, lifecycle, accounts, monitor, bodies)
    paths = [operation.path for operation in router.operations]
    guard = Guard(router, settings, lifecycle, accounts, paths)
    return App(ObservedApp(guard, monitor), router.operations, refusals)


class App:
    """The ASGI application.

    Args:
        app: Router with its middleware.
        operations: Operations of the router.
        early_refusals: Refusals of requests that need no application.

    Attributes:
        operations: Operations of the router.
        early_refusals: Refusals of requests that need no application.
    """

    def __init__(
        self, app: ASGIApp, operations: Sequence[Operation], early_refusals: EarlyRefusals
    ) -> None:
        self.operations = tuple(operations)
        self.early_refusals = early_refusals
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        await self._app(scope, receive, send)


def create_unguarded_app(
    frontend: AsyncFrontend,
    plugins_report: Callable[[], list[dict[str, Any]]],
    lifecycle: Lifecycle,
    control: Sequence[Operation] = (),
    routes: Sequence[LoadedRoute] = (),
    *,
    has_lenient_fields: bool = False,
) -> ErrorResponses:
    """Return the ASGI application for requests that a `Guard` has let through.

    Args:
        frontend: Frontend that serves the requests.
        plugins_report: Function that returns a dict per plugin, for /v1/plugins.
        lifecycle: Lifecycle, which has the drain state.
        control: Operations that need an admin key.
        routes: Routes of plugins.
        has_lenient_fields: True to leave out fields that do not exist, instead of refusing them.
    """
    settings = ServerSettings(lenient_fields=has_lenient_fields, ui=False)
    monitor = Monitor(frontend, settings, lifecycle)
    router = _router(
        frontend,
        plugins_report,
        lifecycle,
        control,
        monitor,
        settings,
        routes,
        ToolServers.none(),
    )
    return ErrorResponses(router)


def _router(
    frontend: AsyncFrontend,
    plugins_report: Callable[[], list[dict[str, Any]]],
    lifecycle: Lifecycle,
    control: Sequence[Operation],
    monitor: Monitor,
    settings: ServerSettings,
    routes: Sequence[LoadedRoute],
    tool_servers: ToolServers,
) -> HTTPRouter:
    unknown = UnknownFields(settings.lenient_fields)
    budget = LogprobBudget.share(settings.api_server_count)
    turns = ChatTurns(frontend, budget, unknown)
    health = HealthRoutes(frontend, lifecycle, plugins_report)
    operations = _operations(frontend, health, turns)
    tools = ServerTools(tool_servers, monitor.tool_calls)
    operations += response_operations(turns, settings, lifecycle, tools)
    operations.append(
        Operation(METRICS_PATH, MetricsRoute(monitor.render).metrics, media_type="text/plain")
    )
    operations += live_operations(Readings(frontend, lifecycle))
    operations += control
    described = [*operations, *plugin_operations(routes, turns)]
    description = ApiDescription(
        described, frontend.intake.fields, frontend.intake.logits_processors.opt_in
    )
    others = [Operation("/openapi.json", description.openapi)]
    others += page_operations() if settings.ui else []
    check_paths(routes, [*operations, *others])
    return HTTPRouter([*described, *others])


def _operations(frontend: AsyncFrontend, health: HealthRoutes, turns: ChatTurns) -> list[Operation]:
    unknown, models = turns.unknown, ModelRoutes(frontend)
    tokens = TokenRoutes(frontend, unknown)
    return [
        Operation("/", health.root, media_type="text/plain"),
        Operation("/livez", health.livez),
        Operation("/readyz", health.readyz),
        Operation("/health", health.health),
        Operation("/version", health.version),
        Operation("/v1/models", models.list_models, response=ModelList),
        Operation("/v1/models/{model:path}", models.retrieve_model, response=ModelCard),
        Operation("/v1/plugins", health.plugins),
        Operation("/load", LoadRoute(frontend).load, response=ServerLoad),
        Operation(
            CHAT_PATH,
            ChatRoute(turns).create,
            "POST",
            ChatBody,
            ChatCompletion,
            ChatChunk,
            has_sampler_fields=True,
        ),
        Operation(
            COMPLETION_PATH,
            CompletionRoute(frontend, turns.budget, unknown).create,
            "POST",
            CompletionBody,
            Completion,
            Completion,
            has_sampler_fields=True,
        ),
        *anthropic_operations(turns),
        *ollama_operations(turns),
        Operation("/tokenize", tokens.tokenize, "POST", TokenizeBody, Tokens),
        Operation("/detokenize", tokens.detokenize, "POST", DetokenizeBody, DetokenizedText),
    ]


def control_operations(frontend: AsyncFrontend) -> list[Operation]:
    """Return the operations that control the engine."""
    reset = CacheRoutes(frontend).reset_prefix_cache
    return [Operation("/reset_prefix_cache", reset, "POST", is_admin=True)]


def account_operations(accounts: Accounts) -> list[Operation]:
    """Return the operations that show the keys and their usage."""
    routes = AccountRoutes(accounts)
    return [
        Operation("/admin/keys", routes.keys, response=KeyList, is_admin=True),
        Operation("/admin/usage", routes.usage, response=UsageList, is_admin=True),
    ]
