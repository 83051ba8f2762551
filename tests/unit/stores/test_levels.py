"""Which objects lie in which level, and which are to go."""

from __future__ import annotations

from sdcp.stores.levels import Levels
from sdcp.stores.sealed import Sealed
from sdcp.stores.store import ObjectInfo
from sdcp.stores.table import Table


def levels(*, memory: int = 100, host: int = 100, disk: int = 100, network: int | None = None) -> Levels:
    return Levels(Table(), memory_bytes=memory, host_bytes=host, host_objects=3, disk_bytes=disk, network_bytes=network)


def on_disk(made: Levels, *names: str, size: int = 10) -> None:
    for name in names:
        info = ObjectInfo(name, 1, size, "x")
        made.table.add(info, 0.0)
        made.add_to_disk(info)


def below(made: Levels, *names: str) -> None:
    for name in names:
        info = made.table.look(name)
        assert info is not None
        made.add_to_network(info)


def test_a_use_of_one_copy_is_a_use_of_all() -> None:
    made = levels()
    on_disk(made, "a", "b", "c")
    below(made, "a", "b")
    made.keep_in_memory("a", b"x" * 10)
    made.keep_in_memory("c", b"x" * 10)
    made.use("a", 0.0)
    assert list(made.memory) == ["c", "a"]
    assert list(made.disk) == ["b", "c", "a"]
    assert list(made.network) == ["b", "a"]
    assert list(made.also_in_network) == ["b", "a"]


def test_process_memory_lets_go_of_the_oldest_copies_and_keeps_nothing_larger_than_itself() -> None:
    made = levels(memory=25)
    on_disk(made, "a", "b", "c")
    for name in "abc":
        assert made.keep_in_memory(name, bytes(10))
    assert list(made.memory) == ["b", "c"]
    assert made.memory.size == 20
    assert made.memory.counts.demotions == 1
    assert not made.keep_in_memory("large", bytes(26))
    assert list(made.memory) == ["b", "c"]


def test_copies_go_before_objects_and_unleased_before_none() -> None:
    made = levels()
    on_disk(made, "leased", "a", "b", "c", "d")
    below(made, "c", "d")
    made.table.take("l", "x", ["leased", "c"], 1000, 0.0)
    assert made.to_free_disk(0, evict=True, passed_over=()) == ([], [])
    assert made.to_free_disk(15, evict=True, passed_over=()) == (["c", "d"], [])
    assert made.to_free_disk(15, evict=True, passed_over={"c"}) == (["d"], ["a"])
    assert made.to_free_disk(31, evict=True, passed_over=()) == (["c", "d"], ["a", "b"])
    assert made.to_free_disk(41, evict=True, passed_over=()) is None
    assert made.to_free_disk(21, evict=False, passed_over=()) is None


def test_where_the_network_may_lose_it_the_disk_keeps_what_is_leased() -> None:
    made = levels()
    made.network_keeps = False
    on_disk(made, "a", "b")
    below(made, "a", "b")
    made.table.take("l", "x", ["a"], 1000, 0.0)
    assert made.to_free_disk(10, evict=True, passed_over=()) == (["b"], [])
    assert made.to_free_disk(11, evict=True, passed_over=()) is None


def test_the_network_lets_go_of_what_nobody_leases_and_was_used_before_what_comes() -> None:
    made = levels()
    on_disk(made, "a", "b", "c", "d", "e")
    below(made, "a", "b", "c", "e")
    made.table.take("l", "x", ["a"], 1000, 0.0)
    made.drop_from_disk("b")
    assert made.to_free_network(0, "d") == []
    assert made.to_free_network(15, "d") == ["b", "c"]
    assert made.to_free_network(21, "d") is None
    made.use("b", 0.0)
    assert made.to_free_network(10, "d") == ["c"]
    made.table.take("m", "x", ["d"], 1000, 0.0)
    assert made.to_free_network(30, "d") == ["c", "e", "b"]
    assert made.to_free_network(31, "d") is None


def test_what_moves_to_the_network_is_what_lies_nowhere_below_oldest_first() -> None:
    made = levels()
    on_disk(made, "a", "b", "c", "d", "e")
    below(made, "b")

    def chosen(most: int, octets: int, *over: str) -> list[str]:
        return [info.name for info in made.to_move_to_network(lambda info: info.name in over, most, octets)]

    assert chosen(3, 1000) == ["a", "c", "d"]
    assert chosen(9, 25) == ["a", "c"]
    assert chosen(9, 1, "a") == ["c"], "one in any case"
    made.drop_from_network("b")
    assert chosen(1, 1000) == ["b"], "what the network let go of is the oldest"


def test_host_memory_is_bounded_by_octets_and_by_segments() -> None:
    made = levels(host=100)
    for name in "abc":
        info = ObjectInfo(name, 1, 10, "x")
        made.table.add(info, 0.0)
        made.host.add(name, 10, Sealed.of(bytes(10)))
    assert not made.host.fits(10), "three segments are the most"
    assert made.host.is_over(0.99)
    made.use("a", 0.0)
    assert made.to_leave_host(set()) == "b"
    assert made.to_leave_host({"b", "c"}) == "a"
    assert made.to_leave_host({"a", "b", "c"}) is None
    made.host.drop("b")
    assert made.host.fits(80)
    assert not made.host.fits(81)


def test_figures_are_by_level_and_know_what_is_leased_where() -> None:
    made = levels(host=0, network=0)
    on_disk(made, "a", "b")
    made.keep_in_memory("b", bytes(10))
    made.table.take("l", "x", ["a", "b"], 1000, 0.0)
    figures = made.figures()
    assert list(figures) == ["memory", "disk"]
    assert (figures["memory"]["leased_octets"], figures["disk"]["leased_octets"]) == (10, 20)
    assert (figures["disk"]["octets"], figures["disk"]["objects"], figures["disk"]["limit"]) == (20, 2, 100)
    made.table.release("l", "x", 0.0)
    made.forget("b")
    made.table.drop("b")
    assert made.figures()["memory"]["octets"] == 0
    assert made.where("b") == ""
    assert made.where("a") == "disk"
