"""What the parties of one world share: the session, the queue, the network, the cache, and who looks on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sdcp.errors import Overloaded
from sdcp.machines.effects import Refuse, Reply
from sdcp.testing.agenda import Agenda
from sdcp.testing.driven import Observer
from sdcp.testing.network import Network
from sdcp.testing.store import Store

UNREACHABLE: Final = Overloaded("The cache does not answer.")

ROUTER: Final = "router"
CACHE: Final = "cache"
FRONT_END: Final = "front end"
"""The parties of which a world has one; instances go by their base URIs."""


@dataclass(frozen=True, slots=True)
class Client:
    """An authenticated client: the base URI of its certificate (D9)."""

    uri: str

    def owns(self, base_uri: str) -> bool:
        """Tell whether the client is that instance."""
        return base_uri == self.uri


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`leaves` sees each answer of a verifier at the moment at which it leaves; `observer` all machines at work."""

    session: bytes
    agenda: Agenda
    network: Network
    store: Store
    leaves: Callable[[Reply | Refuse], None]
    observer: Observer | None = None
