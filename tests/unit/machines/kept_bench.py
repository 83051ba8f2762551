"""A router session with a manifest on the bench: a life of the router, and the next one (D45)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sdcp.machines import effects as fx
from sdcp.machines import inputs
from sdcp.machines.manifest import Manifest, request_records
from sdcp.machines.manifest_log import ManifestLog
from sdcp.machines.router import Patience, RouterSession
from sdcp.machines.router_kept import KeptSession
from sdcp.messages.manifest import RequestRecord, TakenRecord, parse_manifest_record
from sdcp.messages.request import GenerationRequest
from sdcp.wire import cbor
from tests.unit.machines.router_bench import CONTRACT, LOG, PROMPT, QUIET, SESSION, Bench

MANIFEST = "https://cache/logs/ms"
REQUEST = GenerationRequest(request=bytes(16), prompt=PROMPT, max_new=CONTRACT.max_new, stop=CONTRACT.stop, rule=1)
FIRST = RequestRecord(
    router="https://router",
    life=bytes([1]) * 16,
    owner="front end",
    session=SESSION,
    contract=CONTRACT,
    commit_log=LOG,
    request=REQUEST,
    prompt_length=len(PROMPT),
)


@dataclass
class Stored:
    """A manifest in a cache."""

    octets: bytes = b""
    version: int = 0

    @property
    def etag(self) -> str | None:
        return f'"m{self.version}"' if self.version else None

    def append(self, data: bytes, etag: str | None) -> object:
        if etag != self.etag:
            return inputs.LogMoved()
        self.octets += data
        self.version += 1
        return inputs.LogAppended(str(self.etag), 0)

    def read(self, start: int) -> inputs.LogRead:
        return inputs.LogRead(start, self.octets[start:], self.etag)

    def told(self) -> Manifest:
        manifest = Manifest()
        manifest.take(self.octets)
        return manifest

    def kinds(self) -> list[str]:
        records = [parse_manifest_record(value) for _, value in cbor.decode_sequence(self.octets)]
        return [record.kind if record is not None else "?" for record in records]

    def cut(self, records: int) -> Stored:
        """The same with so many records alone."""
        end = [end for end, _ in cbor.decode_sequence(self.octets)][records - 1]
        return Stored(self.octets[:end], records)


class KeptBench(Bench):
    """`stored` is the manifest; with records in it, the session is taken up from them."""

    def __init__(self, stored: Stored | None = None, life: int = 1, **patience: int) -> None:
        super().__init__(**patience)
        self.stored = stored or Stored()
        session = RouterSession(SESSION, CONTRACT, PROMPT, LOG, Patience(**patience))
        self.session = session
        told = self.stored.told() if self.stored.version else None
        first = request_records(FIRST) if told is None else [TakenRecord(router="r", life=bytes([life]) * 16)]
        self.kept = KeptSession(session, ManifestLog(MANIFEST, told, self.stored.etag), first, told)

    def next_life(self, life: int = 2) -> KeptBench:
        """The router is gone with all it knew, and its next life begins; verifier and log are as they were."""
        after = KeptBench(self.stored, life)
        after.log, after.objects, after.verifiers, after.drafters = (
            self.log,
            self.objects,
            self.verifiers,
            self.drafters,
        )
        after.round, after.tokens, after.digest, after.state = self.round, self.tokens, self.digest, self.state
        return after

    def take_up(self) -> KeptBench:
        self.give(inputs.TakenUp())
        self.run()
        return self

    def give(self, event: object) -> list[Any]:
        effects = self.kept.handle(event)
        self.done += effects
        self.pending += [each for each in effects if not isinstance(each, (*QUIET, fx.LetGo))]
        return effects

    def perform(self, effect: Any) -> object | None:
        match effect:
            case fx.AppendManifest():
                return inputs.ManifestAnswered(self.stored.append(effect.data, effect.etag), effect)
            case fx.ReadManifest():
                return inputs.ManifestAnswered(self.stored.read(effect.start), effect)
        return super().perform(effect)

    def unanswered(self, kind: type = fx.AppendManifest, *, done: bool) -> None:
        """The answer to an append is lost; `done` says whether the append is too."""
        effect: Any = self.take(kind)
        if done:
            self.perform(effect)
        self.give(inputs.ManifestAnswered(inputs.LogUnanswered(), effect))
