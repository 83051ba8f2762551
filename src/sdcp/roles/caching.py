"""The caches of a role's settings, opened: `[cache]`, with the role's own name as the owner of what it leases."""

from __future__ import annotations

from sdcp.http.client import Client
from sdcp.ports import Cache
from sdcp.roles.certificate import own_name
from sdcp.roles.config import CachePrefixes, RoleSettings
from sdcp.stores.opening import open_cache


async def open_caches(
    section: CachePrefixes, settings: RoleSettings, client: Client, *, deadline_s: float = 5.0
) -> Cache:
    """Open what `section`, of `settings`, names; the caller closes it. `deadline_s` as in `open_cache`.

    Raises ConfigurationError.
    """
    return await open_cache(
        section.prefixes,
        client=client,
        logs=section.logs,
        owner=own_name(settings),
        deadline_s=deadline_s,
        host_memory=section.host_memory,
    )
