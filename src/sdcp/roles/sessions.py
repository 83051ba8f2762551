"""The sessions of a verifier, by identifier and epoch (D19, D30).

Of one session there may be several epochs for a moment: the one that serves, and a higher one that is being opened. As
soon as that is open, the lower ones are over; if its open is refused, nothing has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from sdcp.errors import UnknownResource
from sdcp.roles.verifying import VerifyingSession

logger = logging.getLogger("sdcp.roles")


class Sessions:
    """All that is held. Iterating gives every epoch of every session.

    An ended session is held for `retention_s` more. One that nothing happens to for `idle_s`, no proposal, no reader,
    no assignment, has been left alone by all (a router that lost its memory): it is given up, or it would take up room
    for ever. Whoever comes back nevertheless finds 404 and resumes it from its log (D19).
    """

    def __init__(self, retention_s: float, idle_s: float) -> None:
        self._retention_s = retention_s
        self._idle_s = idle_s
        self._held: dict[bytes, dict[int, VerifyingSession]] = {}

    def __contains__(self, session: object) -> bool:
        return session in self._held

    def __iter__(self) -> Iterator[VerifyingSession]:
        return (held for epochs in self._held.values() for held in epochs.values())

    @property
    def live(self) -> int:
        """How many sessions have not ended."""
        return sum(any(not held.machine.ended for held in epochs.values()) for epochs in self._held.values())

    def serving(self, session: bytes) -> VerifyingSession:
        """Return the highest epoch that is open; while none is, the highest one. Raises UnknownResource (404)."""
        epochs = self._held.get(session)
        if not epochs:
            raise UnknownResource("There is no such session here.")
        return max(epochs.values(), key=lambda held: (held.machine.phase is not None, held.epoch))

    def opening(self, session: bytes, epoch: int) -> VerifyingSession | None:
        """Return who answers an open of this epoch: the same epoch, or a higher one; None if it is a new one."""
        epochs = self._held.get(session, {})
        known = [held for number, held in epochs.items() if number >= epoch]
        return min(known, key=lambda held: held.epoch) if known else None

    def add(self, held: VerifyingSession) -> None:
        """Hold another epoch."""
        self._held.setdefault(held.session, {})[held.epoch] = held
        asyncio.get_running_loop().call_later(self._idle_s, self._look_at, held)

    def opened(self, held: VerifyingSession) -> None:
        """An epoch is open: the lower ones are over."""
        epochs = self._held.get(held.session, {})
        for epoch in [epoch for epoch in epochs if epoch < held.epoch]:
            epochs.pop(epoch).supersede()

    def ended(self, held: VerifyingSession) -> None:
        """An ended session stays readable for a while (D8); an open that was refused leaves nothing behind (D19)."""
        if held.machine.phase is not None and self._holds(held):
            asyncio.get_running_loop().call_later(self._retention_s, self._forget, held)

    def gone(self, held: VerifyingSession) -> None:
        """Forget an epoch; one that is not held is fine."""
        if self._holds(held):
            del self._held[held.session][held.epoch]
            if not self._held[held.session]:
                del self._held[held.session]

    def _holds(self, held: VerifyingSession) -> bool:
        return self._held.get(held.session, {}).get(held.epoch) is held

    def _look_at(self, held: VerifyingSession) -> None:
        """Give up an open session that has been idle for so long; look at it again when it next may have been."""
        if not self._holds(held) or held.machine.ended:
            return
        left_s = self._idle_s - held.idle_s
        if left_s > 0 or held.machine.working:
            asyncio.get_running_loop().call_later(left_s if left_s > 0 else self._idle_s, self._look_at, held)
            return
        logger.warning("session %s: nothing has happened for %.0f s; given up", held.session.hex(), held.idle_s)
        held.give_up()
        self.gone(held)

    def _forget(self, held: VerifyingSession) -> None:
        held.close()
        self.gone(held)
