"""That an exploration of interleavings finds faults: each of these breaks one rule, and some interleaving shows it.

The faults are in the machines, in the readers, or in the store; the first two were faults of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sdcp.machines.commit_log import CommitLog, Fenced, Recorded
from sdcp.machines.effects import AppendLog, ReadLog
from sdcp.machines.fencing import Fencing, _Step
from sdcp.machines.inputs import LogAppended, LogFenced, LogMoved, LogRead, LogUnanswered
from sdcp.machines.reader import Entry, LogReader
from sdcp.messages.record import CommitRecord, FenceRecord, Record, parse_record
from sdcp.testing.checks import Broken
from sdcp.testing.contenders import GREEDY
from sdcp.testing.interleavings import Cast, explore
from sdcp.testing.log_stores import Answer, ModelPlace, ModelStore
from sdcp.wire import cbor

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Fault:
    """What is broken, and how it shows."""

    name: str
    inject: Callable[[Patch], None]
    shows: str
    cast: Cast = Cast()
    enforces: bool = True
    depth: int = 6

    def __str__(self) -> str:
        return self.name


def valid_commits(log: CommitLog, answer: LogRead) -> list[Entry]:
    entries = log._reader.entries(answer.data)
    return [entry for entry in entries if isinstance(entry.record, CommitRecord) and not entry.void]


def examining(decide: Callable[[CommitLog, CommitRecord, list[Entry]], Any]) -> Callable[[Patch], None]:
    """Another decision about what a writer reads after an append without an answer that it likes."""

    def examine(log: CommitLog, record: CommitRecord, answer: LogRead) -> Any:
        valid = valid_commits(log, answer)
        log._etag = answer.etag
        return decide(log, record, valid)

    return lambda patch: patch.setattr(CommitLog, "_examine", examine)


def recorded(log: CommitLog, entry: Entry) -> Any:
    return log._end(Recorded(entry.start, log._load))


def nobody_may_go_on_from_ours(log: CommitLog, record: CommitRecord, valid: list[Entry]) -> Any:
    if not valid:
        return log._send()
    ours = all(entry.record == record for entry in valid)
    return recorded(log, valid[0]) if ours else log._end(Fenced())


def known_by_its_digest(log: CommitLog, record: CommitRecord, valid: list[Entry]) -> Any:
    if not valid:
        return log._send()
    found = valid[0].record
    assert isinstance(found, CommitRecord)
    same = (found.epoch, found.round, found.digest) == (record.epoch, record.round, record.digest)
    return recorded(log, valid[0]) if same else log._end(Fenced())


def known_by_its_round(log: CommitLog, record: CommitRecord, valid: list[Entry]) -> Any:
    for entry in valid:
        if isinstance(entry.record, CommitRecord) and entry.record.round == record.round:
            return recorded(log, entry)
    return log._end(Fenced()) if valid else log._send()


def never_recognized(log: CommitLog, record: CommitRecord, valid: list[Entry]) -> Any:
    return log._send()


def refusals_are_final(patch: Patch) -> None:
    handle = CommitLog.handle

    def final(log: CommitLog, answer: Any) -> Any:
        return log._end(Fenced()) if isinstance(answer, LogFenced) else handle(log, answer)

    patch.setattr(CommitLog, "handle", final)


def gives_up_without_an_answer(patch: Patch) -> None:
    patch.setattr(CommitLog, "_wait", lambda log: log._end(Fenced()))


def takes_no_answer_for_done(patch: Patch) -> None:
    handle = CommitLog.handle

    def hopeful(log: CommitLog, answer: Any) -> Any:
        if isinstance(answer, LogUnanswered) and isinstance(log.awaited, AppendLog):
            return log._end(Recorded(log._reader.size, None))
        return handle(log, answer)

    patch.setattr(CommitLog, "handle", hopeful)


def stops_at_its_own_fence(patch: Patch) -> None:
    def send(log: CommitLog) -> Any:
        if log._reader.fence >= log._epoch:
            return log._end(Fenced())
        return log._ask(AppendLog(log.ref, log._data, log._etag))

    patch.setattr(CommitLog, "_send", send)


def readers_skip_the_epoch_of_the_fence(patch: Patch) -> None:
    take = LogReader._take

    def skipping(reader: LogReader, start: int, record: Record) -> Entry:
        if isinstance(record, CommitRecord) and record.epoch <= reader.fence:
            return Entry(start, record, void=True)
        return take(reader, start, record)

    patch.setattr(LogReader, "_take", skipping)


def readers_skip_nothing(patch: Patch) -> None:
    take = LogReader._take

    def believing(reader: LogReader, start: int, record: Record) -> Entry:
        fence, reader.fence = reader.fence, 0
        entry = take(reader, start, record)
        reader.fence = max(fence, reader.fence)
        return entry

    patch.setattr(LogReader, "_take", believing)


def fencing_at_the_last_epoch(patch: Patch) -> None:
    read = Fencing._read

    def same_epoch(fencing: Fencing) -> Any:
        effects = [*read(fencing)]
        if effects and isinstance(effects[0], AppendLog):
            fencing.epoch -= 1
            effects[0] = replace(effects[0], data=FenceRecord(epoch=fencing.epoch).encode())
        return effects

    patch.setattr(Fencing, "_read", same_epoch)


def resuming_from_what_was_read_first(patch: Patch) -> None:
    handle = Fencing.handle

    def forgetful(fencing: Fencing, event: object) -> Any:
        if isinstance(event, LogRead) and fencing._recorded.etag is not None:
            fencing._recorded.etag = event.etag
            return fencing._read()
        if isinstance(event, LogAppended) and fencing._step is _Step.FENCING:
            fencing._step = _Step.DONE
            return []
        return handle(fencing, event)

    patch.setattr(Fencing, "handle", forgetful)


def a_fence_without_an_answer_is_taken_for_in(patch: Patch) -> None:
    handle = Fencing.handle

    def hopeful(fencing: Fencing, event: object) -> Any:
        if isinstance(event, LogUnanswered) and fencing._step is _Step.FENCING:
            fencing._step = _Step.READING
            return [ReadLog(fencing._ref, fencing._recorded.end)]
        return handle(fencing, event)

    patch.setattr(Fencing, "handle", hopeful)


def any_fence_is_ours(patch: Patch) -> None:
    """A router that looks for its fence in the log, although a fence carries only an epoch."""
    read = Fencing._read

    def recognizing(fencing: Fencing) -> Any:
        if fencing._step is _Step.LOOKING and fencing._attempts and fencing._recorded.fence == fencing.epoch:
            fencing._step = _Step.READING
        return read(fencing)

    patch.setattr(Fencing, "_read", recognizing)


def the_store_refuses_the_epoch_of_the_fence(patch: Patch) -> None:
    append = ModelStore.append

    def strict(model: ModelStore, place: ModelPlace, effect: AppendLog) -> tuple[Answer, ModelPlace]:
        reader = LogReader()
        reader.read(place.octets)
        record = parse_record(cbor.decode(effect.data))
        if isinstance(record, CommitRecord) and record.epoch <= reader.fence:
            return LogFenced(), place
        return append(model, place, effect)

    patch.setattr(ModelStore, "append", strict)


def the_store_forgets_fences(patch: Patch) -> None:
    append, weak = ModelStore.append, ModelStore(enforces_fences=False)
    patch.setattr(ModelStore, "append", lambda _, place, effect: append(weak, place, effect))


def the_store_ignores_the_tag(patch: Patch) -> None:
    append = ModelStore.append

    def careless(model: ModelStore, place: ModelPlace, effect: AppendLog) -> tuple[Answer, ModelPlace]:
        return append(model, place, replace(effect, etag=place.etag))

    patch.setattr(ModelStore, "append", careless)


def the_store_appends_what_it_refuses(patch: Patch) -> None:
    append = ModelStore.append

    def both(model: ModelStore, place: ModelPlace, effect: AppendLog) -> tuple[Answer, ModelPlace]:
        answer, after = append(model, place, effect)
        if isinstance(answer, LogMoved):
            _, after = append(model, place, replace(effect, etag=place.etag))
        return answer, after

    patch.setattr(ModelStore, "append", both)


def nothing_more(patch: Patch) -> None:
    """The fault is in the cast."""


DROPPED = "dropped a record that counts"
SKIPPED = "released what readers skip or do not find"
RESTARTS = Cast(restarts=1, spread=GREEDY)
BLIND = Cast(blind=True)

FAULTS = (
    Fault("nobody may go on from our record", examining(nobody_may_go_on_from_ours), DROPPED, depth=8),
    Fault("a refusal is final, though a copy came before", refusals_are_final, DROPPED, depth=8),
    Fault("a record of another life is ours", examining(known_by_its_digest), SKIPPED, RESTARTS),
    Fault("a record of another verifier is ours", examining(known_by_its_round), SKIPPED),
    Fault("our record is not recognized", examining(never_recognized), "round 1 follows round 1"),
    Fault("no answer means fenced", gives_up_without_an_answer, DROPPED),
    Fault("no answer means done", takes_no_answer_for_done, SKIPPED),
    Fault("a verifier stops at the fence that made it (<= for <)", stops_at_its_own_fence, "no fence above it"),
    Fault("readers skip the fence's own epoch (<= for <)", readers_skip_the_epoch_of_the_fence, "reads something else"),
    Fault("readers skip nothing", readers_skip_nothing, "reads something else", BLIND, enforces=False),
    Fault("a fence of the epoch that is over", fencing_at_the_last_epoch, "in a log that has epoch", enforces=False),
    Fault("what was read before the fence is enough", resuming_from_what_was_read_first, "resumes from another record"),
    Fault("a fence without an answer is there", a_fence_without_an_answer_is_taken_for_in, "router 1 gets nowhere"),
    Fault("a fence of this epoch is ours", any_fence_is_ours, "no fence above it", Cast(routers=2)),
    Fault("the store refuses the fence's own epoch", the_store_refuses_the_epoch_of_the_fence, "no fence above it"),
    Fault("the store forgets fences", the_store_forgets_fences, "below the fence", BLIND),
    Fault("the store ignores the tag", the_store_ignores_the_tag, "do not go together"),
    Fault("the store appends what it refuses", the_store_appends_what_it_refuses, "do not go together"),
    Fault("no reading back", nothing_more, SKIPPED, replace(BLIND, reads_back=False), enforces=False),
)


@pytest.mark.requirement("S6.8-read-back", "S6.8-fence-refuses-older", "S6.8-conditional-append", "S6.9-fence-first")
@pytest.mark.decision("D20", "D27")
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_some_interleaving_shows_it(fault: Fault, monkeypatch: Patch) -> None:
    fault.inject(monkeypatch)
    with pytest.raises(Broken, match=fault.shows) as broken:
        explore(ModelStore(enforces_fences=fault.enforces), fault.depth, fault.cast)
    print(broken.value)
