"""Every route that asks for a login: what the server answers, and what the OpenAPI description must describe."""

from __future__ import annotations

from typing import Final

from coterie.console import (
    api_access,
    api_backup,
    api_broker,
    api_clients,
    api_cluster,
    api_features,
    api_health,
    api_leases,
    api_live,
    api_log,
    api_messages,
    api_openapi,
    api_parameters,
    api_policies,
    api_replication,
    api_security,
    api_session,
    api_streams,
    api_tracing,
    api_wiring,
)
from coterie.console.ask import Route

_PLAIN: Final[list[Route]] = [
    *api_broker.ROUTES, *api_wiring.ROUTES, *api_messages.ROUTES, *api_clients.ROUTES, *api_access.ROUTES,
    *api_policies.ROUTES, *api_replication.ROUTES, *api_leases.ROUTES, *api_streams.ROUTES, *api_log.ROUTES,
    *api_tracing.ROUTES, *api_health.ROUTES, *api_parameters.ROUTES, *api_features.ROUTES, *api_openapi.ROUTES,
    *api_backup.ROUTES,
]  # fmt: skip
ROUTES: Final[list[Route]] = [*_PLAIN, *api_live.routes(_PLAIN)]
ALWAYS: Final[list[Route]] = [*api_cluster.ROUTES, *api_session.ROUTES, *api_security.ROUTES]
"""Those that look themselves whether the broker serves."""
