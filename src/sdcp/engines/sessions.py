"""Which sessions hold KV in a torch engine, and how many may.

Not here: the KV itself (`ragged`), and what becomes of it when a session is closed (`transformers`).
"""

from __future__ import annotations

from sdcp.engines.causal import CausalModel
from sdcp.engines.ragged import SessionKV
from sdcp.errors import InvalidContent, Overloaded
from sdcp.ports import DraftJob, PrefillJob, VerifyJob


class Sessions:
    """The KV of every session. A target is full at `capacity`; a drafter lets go of the one used longest ago."""

    def __init__(self, model: CausalModel, capacity: int, evicts: bool) -> None:
        self._model, self._capacity, self._evicts = model, capacity, evicts
        self._held: dict[bytes, SessionKV] = {}

    def __getitem__(self, job: PrefillJob | VerifyJob | DraftJob) -> SessionKV:
        """Find or admit the session of a job; the latest used comes last."""
        kv = self._held.pop(job.session, None)
        if kv is None:
            kv = self._admitted(empty=job.length == 0 or (isinstance(job, PrefillJob) and job.empty_prompt))
        self._held[job.session] = kv
        return kv

    def get(self, session: bytes) -> SessionKV | None:
        """Return the KV of a session as it is, without admitting one."""
        return self._held.get(session)

    def close(self, session: bytes) -> SessionKV | None:
        """Let go of a session; return what it held."""
        return self._held.pop(session, None)

    def _admitted(self, empty: bool) -> SessionKV:
        if empty and self._model.bos is None and not self._evicts:
            raise InvalidContent("The model has no BOS token to begin with: give a prompt of at least one token (D26).")
        if len(self._held) >= self._capacity:
            if not self._evicts:
                raise Overloaded(f"The engine holds {self._capacity} sessions already: try again later or elsewhere.")
            del self._held[next(iter(self._held))]
        return SessionKV((self._model.bos or 0,) if empty else ())  # a drafter may begin with any token
