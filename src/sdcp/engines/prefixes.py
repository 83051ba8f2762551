"""KV of prefixes that sessions had, kept for sessions that begin alike (D44).

A tree of *pages*: a page holds up to 64 tokens and their KV, and its children the pages that went on from it. Every
page but the last of a branch is full. Tokens are compared themselves, no digests of them, so a session is given the KV
of exactly the tokens that it has in common with an earlier one. Among the pages below one, no page begins with all of
another, and they are kept in order: the one with the most tokens in common is a neighbour of where the wanted tokens
would stand. Finding a prefix so costs its length, however many are kept.

What is kept is bounded in octets; the branch used longest ago loses its last page first. KV is copied in and out: a
session may be cut or closed as if nobody had ever seen it.

Not here: when KV is put in and taken out (`transformers`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sdcp.engines.ragged import Layers, SessionKV

PAGE = 64
"""Tokens of a full page."""

Tokens: TypeAlias = tuple[int, ...]


@dataclass(eq=False, slots=True)
class _Page:
    """Some tokens, their KV, and what came after them. The root has neither tokens nor KV nor a parent."""

    tokens: Tokens = ()
    layers: Layers = field(default_factory=dict)
    parent: _Page | None = None
    order: list[Tokens] = field(default_factory=list)
    below: dict[Tokens, _Page] = field(default_factory=dict)

    @property
    def octets(self) -> int:
        return sum(each.nbytes for pair in self.layers.values() for each in pair)

    def closest(self, tokens: Tokens) -> tuple[_Page | None, int]:
        """Return the page below that has the most tokens in common with `tokens`, and how many these are."""
        at = bisect_left(self.order, tokens)
        neighbours = [(_common(each, tokens), each) for each in self.order[max(at - 1, 0) : at + 1]]
        count, best = max(neighbours, default=(0, ()))
        return (self.below[best], count) if count else (None, 0)

    def add(self, page: _Page) -> None:
        self.order.insert(bisect_left(self.order, page.tokens), page.tokens)
        self.below[page.tokens] = page

    def remove(self, page: _Page) -> None:
        del self.order[bisect_left(self.order, page.tokens)]
        del self.below[page.tokens]


class PrefixStore:
    """KV of prefixes, at most `most_octets` of it."""

    def __init__(self, most_octets: int) -> None:
        self._most = most_octets
        self._root = _Page()
        self._pages: dict[_Page, None] = {}
        """By last use; a page always comes after those below it, so the first is the last of its branch."""
        self.octets = 0

    def take(self, kv: SessionKV, tokens: Sequence[int]) -> int:
        """Let a session that holds the first of `tokens` hold as many as are known; return how many more that is."""
        held = len(kv.tokens)
        path = self._path(tokens)
        found = sum(count for _, count in path)
        if found <= held:
            return 0
        kv.extend(tokens[held:found], [_cut(page, max(held - at, 0), count) for page, at, count in _placed(path, held)])
        self._used([page for page, _ in path])
        return found - held

    def put(self, kv: SessionKV, count: int) -> None:
        """Keep the KV of the first `count` tokens of a session, as far as there is room."""
        if not self._most:
            return
        path: list[_Page] = []
        page: _Page | None = self._root
        for start in range(0, count, PAGE):
            assert page is not None  # the loop ends with the first page that is not there
            tokens = tuple(kv.tokens[start : min(start + PAGE, count)])
            page = self._known(page, tokens) or self._added(page, tokens, kv, start, path)
            if page is None:
                break
            path.append(page)
        self._used(path)

    def _path(self, tokens: Sequence[int]) -> list[tuple[_Page, int]]:
        """Pages whose tokens `tokens` begins with, and how many of each it has; all but the last in full."""
        path: list[tuple[_Page, int]] = []
        page, count = self._root, PAGE
        for start in range(0, len(tokens), PAGE):
            below, count = page.closest(tuple(tokens[start : start + PAGE]))
            if below is None:
                break
            path.append((below, count))
            if count < PAGE:
                break
            page = below
        return path

    def _known(self, page: _Page, tokens: Tokens) -> _Page | None:
        """The page below that begins with all of `tokens`."""
        below, count = page.closest(tokens)
        return below if count == len(tokens) else None

    def _added(self, parent: _Page, tokens: Tokens, kv: SessionKV, start: int, path: list[_Page]) -> _Page | None:
        """A new page below `parent`, in the place of one with less of the same tokens; None when there is no room."""
        page = _Page(tokens, kv.copied(start, start + len(tokens)), parent)
        shorter, count = parent.closest(tokens)
        if shorter is not None and count == len(shorter.tokens):
            self._drop(shorter)
        if not self._make_room(page.octets, path):
            return None
        parent.add(page)
        self._pages[page] = None
        self.octets += page.octets
        return page

    def _make_room(self, octets: int, path: list[_Page]) -> bool:
        """Drop what was used longest ago, but nothing of `path`, until so many octets fit; tell whether they do."""
        if octets > self._most:
            return False
        self._used(path)
        while self.octets + octets > self._most:
            oldest = next(iter(self._pages))
            if oldest in path:
                return False
            self._drop(oldest)
        return True

    def _used(self, path: list[_Page]) -> None:
        """Mark a branch as the one used last."""
        for page in reversed(path):
            self._pages.pop(page)
            self._pages[page] = None

    def _drop(self, page: _Page) -> None:
        del self._pages[page]
        self.octets -= page.octets
        assert page.parent is not None  # the root is not among the pages
        page.parent.remove(page)


def _placed(path: list[tuple[_Page, int]], held: int) -> list[tuple[_Page, int, int]]:
    """Pages of a path with their position and count, as far as they reach beyond the first `held` tokens."""
    placed, at = [], 0
    for page, count in path:
        if at + count > held:
            placed.append((page, at, count))
        at += count
    return placed


def _cut(page: _Page, start: int, stop: int) -> Layers:
    return {index: (keys[:, start:stop], values[:, start:stop]) for index, (keys, values) in page.layers.items()}


def _common(one: Tokens, other: Tokens) -> int:
    """How many tokens two runs begin with alike."""
    least = min(len(one), len(other))
    return next((index for index in range(least) if one[index] != other[index]), least)
