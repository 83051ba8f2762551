"""The corpus of the fuzzer, and what it once found, through the same targets; no atheris is needed."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from random import Random

import pytest
from fuzz import corpus
from fuzz.__main__ import main
from fuzz.driver import GROWTH_MIB, Run
from fuzz.frames import taken_apart
from fuzz.targets import NAMES, load
from fuzz.trees import NotWellFormed, canonical, has_repeated_keys, levels, read, write


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The targets log what they provoke, and collect garbage after each input: only theirs, then."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", NAMES)
def test_every_input_that_is_kept_finds_nothing(target: str) -> None:
    inputs = corpus.read(target)
    assert len(inputs) >= 20
    for each in inputs:
        load(target).one(each)


@pytest.mark.parametrize("target", NAMES)
def test_what_mutation_makes_of_the_corpus_finds_nothing(target: str) -> None:
    """A little of what the fuzzer does, the same each time: so that a mutator that fails is seen without atheris."""
    luck, inputs = Random(target), corpus.read(target)

    def octets(data: bytes, size: int) -> bytes:
        at = luck.randrange(len(data) + 1)
        return (data[:at] + luck.randbytes(1) + data[at + 1 :])[:size]

    for _ in range(150):
        load(target).one(load(target).mutate(luck.choice(inputs), luck, octets)[:4096])


@pytest.mark.parametrize("target", NAMES)
def test_the_corpus_stays_small(target: str) -> None:
    kept = corpus._lines(corpus.FOLDER / f"{target}.hex")
    assert len(kept) <= corpus.MOST_INPUTS
    assert sum(map(len, kept)) <= corpus.MOST_OCTETS


def test_writing_keeps_the_shortest_within_the_bounds(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    inputs = [bytes([number]) * (number + 1) for number in range(corpus.MOST_INPUTS + 9)]
    assert corpus.write("cbor", [*inputs, *inputs]) == corpus.MOST_INPUTS
    (tmp_path / "cbor-found.hex").write_text("# what it was\n00ff\n")
    assert corpus.read("cbor") == [*inputs[: corpus.MOST_INPUTS], b"\x00\xff"]


@pytest.mark.parametrize(
    ("octets", "least"),
    [
        ("1800", "00"),
        ("5f41014102ff", "420102"),
        ("bf616101616002ff", "a2616002616101"),
        ("fb3ff0000000000000", "f93c00"),
        ("fa7fc00001", "f97e00"),
        ("c11a514b67b0", "c11a514b67b0"),
    ],
)
def test_trees_are_written_as_they_came_and_in_the_least_form(octets: str, least: str) -> None:
    tree, end = read(bytes.fromhex(octets))
    assert end == len(octets) // 2
    assert write(tree).hex() == octets
    assert canonical(tree).hex() == least


@pytest.mark.parametrize("octets", ["", "18", "ff", "61ff", "f800", "5f6100ff", "9f", "bf00ff", "1c"])
def test_what_is_no_item_has_no_tree(octets: str) -> None:
    with pytest.raises(NotWellFormed):
        read(bytes.fromhex(octets))


def test_depth_and_repeated_keys_are_seen() -> None:
    assert levels(read(bytes.fromhex("81a1c10080"))[0]) == 3
    assert has_repeated_keys(read(bytes.fromhex("81a2616101" + "7f6161ff02"))[0])
    assert not has_repeated_keys(read(bytes.fromhex("a2010261610f"))[0])


def test_frames_are_taken_apart_and_the_last_may_be_cut_short() -> None:
    octets = bytes.fromhex("000003010500000001616263" + "0000090000000000036162")
    assert [(frame.kind, frame.stream, frame.payload, frame.size) for frame in taken_apart(octets)] == [
        (1, 1, b"abc", 3),
        (0, 3, b"ab", 9),
    ]
    assert b"".join(frame.octets() for frame in taken_apart(octets)) == octets


# -- the driver --------------------------------------------------------------------------------------------------------


def test_without_atheris_one_line_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["cbor"]) == 2
    assert capsys.readouterr().err.startswith("fuzz: atheris is not installed")


def test_an_unknown_target_and_a_missing_file_are_refused(capsys) -> None:
    assert main(["nothing"]) == 2
    assert main(["--replay", "nothing", "x"]) == 2
    assert main(["--replay", "cbor", "/nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 3


def test_an_input_is_tried_again_by_itself(tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\x01")
    assert main(["--replay", "cbor", str(path)]) == 0
    monkeypatch.setattr(sys.modules["fuzz.targets.cbor"].cbor, "decode", lambda data, limit=0: 1 / 0)
    assert main(["--replay", "cbor", str(path)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_finding_is_one_line_with_the_command_that_tries_it_again() -> None:
    run = Run("cbor", 60)
    run.take("#2048 pulse  cov: 12 ft: 34 corp: 5/60b lim: 4096 exec/s: 512 rss: 61Mb")
    run.take(" === Uncaught Python exception: ===")
    run.take("AssertionError: cbor2 reads something else")
    run.take("artifact_prefix='fuzz/crashes/cbor-'; Test unit written to fuzz/crashes/cbor-crash-ab")
    assert (run.executions, run.edges, run.features, run.inputs) == (2048, 12, 34, 5)
    assert run.finding(0) is None
    assert run.finding(77) == (
        "cbor: FOUND AssertionError: cbor2 reads something else; "
        "again: python -m fuzz --replay cbor fuzz/crashes/cbor-crash-ab"
    )


def test_memory_that_grows_is_a_finding() -> None:
    run = Run("cbor", 60, warm_mib=60.0, now_mib=60.0 + GROWTH_MIB)
    assert run.finding(0) is None
    run.now_mib += 1
    assert "memory grew by 33 MiB" in (run.finding(0) or "")
