"""`sdcp log` and `sdcp cache ls|stat|gc` on a cache that is a folder: what they print, and the exit codes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from sdcp.audit.logs import show, verify
from sdcp.audit.place import Access, _as_configured
from sdcp.audit.session import of_manifest
from sdcp.audit.stock import KINDS, gc, ls, stat
from sdcp.engines.bigram import BigramTarget, write_bigram
from sdcp.errors import ConfigurationError
from sdcp.messages.contract import Contract
from sdcp.messages.manifest import RequestRecord
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.request import GenerationRequest
from sdcp.ports import Cache, LogDamagedError, LogSlice
from sdcp.stores.durable import DurableStore
from tests.unit.audit.test_chain import CONTRACT, log_of, octets

OUTPUT = ((1, 2), (3,), (0, 1, 2))


class Folder:
    """A store with the logs and manifest of one greedy session of a bigram model that counts 0 1 2 3 0 1 2 ..."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = path / "model.safetensors"
        write_bigram(self.model, np.roll(np.eye(4, dtype=np.float32), 1, axis=1))
        self.contract = replace(CONTRACT, target=BigramTarget(self.model).model)
        self.access = Access(None, path)

    @property
    def uri(self) -> str:
        return f"file://{self.path}/store"

    def log(self, name: str = "c1") -> str:
        return f"{self.uri}/logs/{name}"

    def log_of(self, *rounds: tuple[int, ...]) -> list[CommitRecord]:
        return log_of(*rounds, contract=self.contract, prompt=(0,))

    def append(self, name: str, data: bytes) -> None:
        async def work() -> None:
            store = DurableStore(self.path / "store")
            await store.append(name, data, None)
            await store.close()

        asyncio.run(work())


def session(contract: Contract, prompt: tuple[int, ...] = (0,), name: str = "c1") -> bytes:
    request = GenerationRequest(request=bytes(16), prompt=prompt, max_new=contract.max_new, stop=contract.stop, rule=1)
    return RequestRecord(
        epoch=1,
        router="https://router.test/",
        life=bytes(16),
        owner="https://gateway.test/",
        session=bytes(16),
        contract=contract,
        commit_log=name,
        request=request,
        prompt_length=len(prompt),
    ).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.append("c1", octets(*made.log_of(*OUTPUT), FenceRecord(epoch=2)))
    made.append("m1", session(made.contract))
    return made


def test_a_log_is_a_table(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(folder.log(), folder.access, False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["#", "octet", "record", "epoch", "round"]
    assert [line.split()[2] for line in lines[1:]] == ["commit", "commit", "commit", "fence"]
    assert "…" not in "".join(lines)  # a file or a pipe is as wide as need be


def test_a_log_is_json_line_by_line(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(folder.log(), folder.access, True) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["record"] for each in records] == ["commit", "commit", "commit", "fence"]
    assert records[0]["tokens"] == [1, 2]
    assert records[1]["octet"] == len(octets(folder.log_of(*OUTPUT)[0]))


def test_a_good_log_is_verified_with_its_manifest(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(folder.log(), folder.access, None, None, False) == 0
    assert (
        f"3 rounds in 4 records commit 6 tokens; d[6] = {folder.log_of(*OUTPUT)[-1].digest.hex()}"
        in capsys.readouterr().out
    )


def test_each_token_is_proven(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(folder.log(), folder.access, None, folder.model, True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["committed"], report["near_ties"], report["wrong"], report["fault"]) == (6, 0, [], None)


def test_a_token_that_greedy_decoding_does_not_give_is_named(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.append("c2", octets(*folder.log_of((1, 2), (0,))))
    folder.append("m2", session(folder.contract))
    assert verify(folder.log("c2"), folder.access, None, None, False) == 0, "as a chain it is good"
    assert verify(folder.log("c2"), folder.access, None, folder.model, False) == 1
    said = capsys.readouterr().out
    assert "token 2: 0, plain decoding 3" in said
    assert "1 wrong tokens" in said


def test_the_first_bad_record_is_named(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    log = folder.log_of(*OUTPUT)
    folder.append("c3", octets(log[0], replace(log[1], tokens=(2,)), log[2]))
    folder.append("m3", session(folder.contract))
    assert verify(folder.log("c3"), folder.access, None, None, False) == 1
    said = capsys.readouterr()
    assert "1 rounds in 1 records commit 2 tokens" in said.out
    assert f"record 1 at octet {len(octets(log[0]))} is bad: The log's record of round 2" in said.err
    assert verify(folder.log("c3"), folder.access, None, None, True) == 1
    assert json.loads(capsys.readouterr().out)["fault"]["index"] == 1


def test_a_log_of_another_prompt_is_bad_from_its_first_record(folder: Folder) -> None:
    folder.append("c4", octets(*folder.log_of(*OUTPUT)))
    folder.append("m4", session(folder.contract, prompt=(1,)))
    assert verify(folder.log("c4"), folder.access, None, None, False) == 1


def test_a_damaged_log_is_said_to_be(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    record = folder.log_of(*OUTPUT)[1].encode()
    [segment] = (file for file in (folder.path / "store" / "journal").iterdir() if record in file.read_bytes())
    octets_of_file = bytearray(segment.read_bytes())
    octets_of_file[octets_of_file.index(record) + len(record) // 2] ^= 1
    segment.write_bytes(octets_of_file)
    assert show(folder.log(), folder.access, False) == 1
    assert "intact" in capsys.readouterr().err


def test_a_manifest_that_is_damaged_behind_the_prompt_is_good_enough(folder: Folder) -> None:
    damage = LogDamagedError("octets are gone", len(session(folder.contract)), session(folder.contract))

    class Damaged:
        async def read_log(self, ref: str) -> LogSlice:
            raise damage

    found = asyncio.run(of_manifest(cast("Cache", Damaged()), folder.log()))
    assert (found.contract, found.prompt) == (folder.contract, (0,))


def test_what_show_prints_of_a_manifest_is_an_opening(
    folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(folder.log("m1"), folder.access, True) == 0
    opening = tmp_path / "opening.json"
    opening.write_text(capsys.readouterr().out.splitlines()[0])
    assert verify(folder.log(), folder.access, opening, None, False) == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"contract": {}}', '{"contract": {"target": "a"}, "prompt": [1]}'])
def test_an_opening_that_is_none_is_refused(folder: Folder, tmp_path: Path, text: str) -> None:
    (tmp_path / "opening.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"opening\.json"):
        verify(folder.log(), folder.access, tmp_path / "opening.json", None, False)


def test_options_of_a_cache_may_stand_behind_the_name_of_a_log(folder: Folder) -> None:
    for uri in ("s3://bucket/x?secret=y/logs/c1", "s3://bucket/x/logs/c1?secret=y"):
        with pytest.raises(ConfigurationError, match="unknown option secret"):
            show(uri, folder.access, False)


def test_what_cannot_be_verified_says_what_to_give(folder: Folder) -> None:
    folder.append("c5", octets(*folder.log_of(*OUTPUT)))
    folder.append("other", octets(*folder.log_of(*OUTPUT)))
    folder.append("c6", octets(*folder.log_of(*OUTPUT)))
    folder.append("m6", octets(CommitRecord(epoch=1, round=1, tokens=(1,), committed=1, digest=bytes(32))))
    for name, complaint in (
        ("c5", "there is no manifest"),
        ("other", "says nothing of a manifest"),
        ("c6", "is no manifest"),
        ("c7", "there is no such log"),
        ("m1", "is a manifest; verify the commit log, .*/logs/c1"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            verify(folder.log(name), folder.access, None, None, False)
    with pytest.raises(ConfigurationError, match="which ends in /logs/NAME"):
        show(folder.uri, folder.access, False)
    with pytest.raises(ConfigurationError, match="no such settings"):
        show("c1", folder.access, False)
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        show("file:///nowhere/logs/c1", folder.access, False)


def test_only_a_greedy_session_of_that_model_can_be_replayed(folder: Folder, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    write_bigram(other, np.eye(4, dtype=np.float32))
    with pytest.raises(ConfigurationError, match="the session's target is"):
        verify(folder.log(), folder.access, None, other, False)
    with pytest.raises(ConfigurationError, match="no such model"):
        verify(folder.log(), folder.access, None, tmp_path / "none", False)
    folder.append("c8", b"".join(FenceRecord(epoch=number).encode() for number in (2, 3)))
    folder.append("m8", session(replace(folder.contract, rule=2)))
    with pytest.raises(ConfigurationError, match="rule 2"):
        verify(folder.log("c8"), folder.access, None, folder.model, False)


# ---- stock -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stocked(folder: Folder) -> Folder:
    async def work() -> None:
        store = DurableStore(folder.path / "store")
        for number in range(3):
            await store.put(f"o{number}", bytes(100), "drafter")
        await store.take_lease("l1", "drafter", ["o1"], 60_000)
        await store.close()

    asyncio.run(work())
    return folder


def test_a_listing_has_a_line_for_each(stocked: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert ls(stocked.uri, stocked.access, KINDS, "", True) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["kind"], each["name"]) for each in found] == [
        ("objects", "o0"),
        ("objects", "o1"),
        ("objects", "o2"),
        ("logs", "c1"),
        ("logs", "m1"),
        ("leases", "l1"),
    ]
    assert [each["leased"] for each in found[:3]] == [False, True, False]
    assert ls(stocked.uri, stocked.access, ("objects",), "o2", False) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["kind", "octets", "age", "lease", "level", "name"]
    assert line.split()[-1] == "o2"


def test_sums(stocked: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert stat(stocked.uri, stocked.access, True) == 0
    sums = json.loads(capsys.readouterr().out)
    assert (sums["objects"], sums["octets"], sums["leased_objects"], sums["leased_octets"]) == (3, 300, 1, 100)
    assert (sums["logs"], sums["leases"]) == (2, 1)
    assert sum(sums["levels"].values()) == 300
    assert stat(stocked.uri, stocked.access, False) == 0
    assert "leased" in capsys.readouterr().out


def test_what_is_old_and_unleased_goes(stocked: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert gc(stocked.uri, stocked.access, 3600, False, True) == 0
    assert json.loads(capsys.readouterr().out) == {"objects": 0, "octets": 0, "deleted": True}
    assert gc(stocked.uri, stocked.access, 0, True, False) == 0
    assert capsys.readouterr().out == "would delete 2 objects of 200 octets\n"
    assert gc(stocked.uri, stocked.access, 0, False, False) == 0
    assert capsys.readouterr().out == "deleted 2 objects of 200 octets\n"
    assert ls(stocked.uri, stocked.access, ("objects",), "", True) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["o1"]


# ---- which cache -----------------------------------------------------------------------------------------------------


def test_without_a_uri_all_caches_of_the_settings_are_one(stocked: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    (stocked.path / "logs").mkdir()
    settings = f'[cache]\nprefixes = ["file://{stocked.path}/logs", "{stocked.uri}"]\nlogs = "{stocked.uri}"\n'
    (stocked.path / "router.toml").write_text(settings)
    assert ls(None, stocked.access, KINDS, "", True) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["kind"], each["name"]) for each in found] == [("logs", "c1"), ("logs", "m1")]
    assert verify("c1", stocked.access, None, None, False) == 0


@pytest.mark.parametrize(
    "given", ["valkey://host:1/0", "valkey://host:1/0/sdcp", "valkey://host:1/0/", "valkey://host:1"]
)
def test_a_uri_is_taken_as_the_settings_have_it(tmp_path: Path, given: str) -> None:
    configured = "valkey://host:1?replicas=1" if given.endswith(":1") else "valkey://host:1/0?replicas=1"
    (tmp_path / "router.toml").write_text(f'[cache]\nprefixes = ["https://x", "{configured}"]\n')
    assert _as_configured(given, Access(None, tmp_path)) == configured
    assert _as_configured("valkey://other:1/0", Access(None, tmp_path)) == "valkey://other:1/0"
