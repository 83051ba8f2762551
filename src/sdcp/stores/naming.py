"""Names of objects and logs under one prefix, and which refs are of it (D11): what caches of every scheme share."""

from __future__ import annotations

import secrets

from sdcp.ports import Kind
from sdcp.stores.store import NAME

_NAME_OCTETS = 16  # 128 random bits


def fresh_name() -> str:
    """A name for an object that nobody guesses."""
    return f"o{secrets.token_urlsafe(_NAME_OCTETS)}"


class Naming:
    """`<base>/objects/<name>`, `<base>/logs/<name>`: compared as they are written, without escapes or dots."""

    def __init__(self, base: str) -> None:
        """`base` has no slash at its end."""
        self._base = base

    def allows(self, ref: str) -> bool:
        """See `Cache.allows`."""
        return self._split(ref, "objects") is not None

    def allows_log(self, ref: str) -> bool:
        """See `Cache.allows_log`."""
        return self._split(ref, "logs") is not None

    def ref_of(self, kind: Kind, name: str) -> str:
        """See `Cache.ref_of`."""
        return f"{self._base}/{kind}/{name}"

    def _name(self, ref: str, kind: Kind) -> str:
        """The name of a ref that is ours. Raises ValueError."""
        name = self._split(ref, kind)
        if name is None:
            raise ValueError(f"{ref} is none of the {kind} under {self._base}")
        return name

    def _split(self, ref: str, kind: Kind) -> str | None:
        name = ref.removeprefix(f"{self._base}/{kind}/")
        return name if name != ref and NAME.fullmatch(name) else None
