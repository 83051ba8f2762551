"""Ragged passes over many sessions: their KV, and attention without padding (6.3).

Words: a *piece* is the run of new tokens that one session adds to a pass; a pass lays all pieces end to end, so linear
layers see one matrix [N, width] with nothing wasted. Attention goes piece by piece over the session's own KV and over
no more of it than there is: no row can see another session, and a short session does not pay for a long one.
KV grows in steps with its session; going back to the accepted prefix forgets tokens and moves no data.

Queries go through attention in tiles of a few positions, never less than 8 rows, over keys rounded up to 64; a tile
lies between two multiples of 64, so how many keys a row is given follows from its position alone. On the CPU this makes
a row's result the same whatever tile, pass or batch it rides in (measured, and tested): half of what makes greedy
output repeat bit for bit (D32), and what makes KV computed elsewhere as good as one's own (D44). The other half are
linear layers that do the same (`linears`).

Not here: models, sampling, threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

STEP = 64
"""KV room grows to a multiple of this many tokens, and by at least half."""

LEAST_ROWS, MOST_ROWS = 8, 24
"""Query rows (positions times heads that share a KV head) of one attention call on the CPU."""

ROUND = 64
"""Keys of one attention call are rounded up to a multiple of this, of which STEP is one; what is beyond is hidden."""


Layers: TypeAlias = dict[int, tuple[Tensor, Tensor]]
"""Keys and values of a run of tokens by layer, each [KV heads, tokens, head width]."""


class SessionKV:
    """Keys and values of one session, by layer [KV heads, room, head width], and the tokens that they belong to."""

    def __init__(self, head: tuple[int, ...] = ()) -> None:
        self.head = head
        """Tokens before the prefix: BOS when the prompt is empty (D26)."""
        self.tokens: list[int] = []
        self._confirmed = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def pending(self, prefix: Sequence[int], length: int) -> list[int]:
        """Go back to what agrees with `prefix[:length]`; return the tokens still to compute, at least the last one.

        What once agreed is not compared again, since a committed prefix only grows. Empty only if all is empty.
        """
        total = len(self.head) + length
        agreed = self.agreed(prefix, max(total - 1, 0))
        self.cut(agreed)
        self._confirmed = agreed
        return [self._token(prefix, index) for index in range(agreed, total)]

    def agreed(self, prefix: Sequence[int], rows: int) -> int:
        """How many of the first `rows` tokens of head and prefix are held."""
        most = min(rows, len(self.tokens))
        agreed = min(self._confirmed, most)
        while agreed < most and self.tokens[agreed] == self._token(prefix, agreed):
            agreed += 1
        return agreed

    def copied(self, start: int, stop: int) -> Layers:
        """Copy keys and values of the tokens from position `start` up to `stop`."""
        with torch.inference_mode():
            return {
                index: (_part(keys, start, stop), _part(values, start, stop)) for index, (keys, values) in self._held()
            }

    def extend(self, tokens: Sequence[int], parts: Sequence[Layers]) -> None:
        """Hold further tokens, whose keys and values were computed elsewhere: copied, `parts` one after the other."""
        start = len(self.tokens)
        with torch.inference_mode():
            for layer in parts[0]:
                keys, values = (torch.cat([part[layer][which] for part in parts], dim=1) for which in (0, 1))
                self.write(layer, start, keys.transpose(0, 1), values.transpose(0, 1))
        self.tokens += tokens

    def shapes(self) -> dict[int, tuple[int, int, int]]:
        """KV heads, width of a key and width of a value by layer."""
        return {index: (keys.shape[0], keys.shape[2], values.shape[2]) for index, (keys, values) in self._held()}

    def cut(self, count: int) -> None:
        """Forget all but the first `count` tokens."""
        del self.tokens[count:]

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [n, KV heads, width] from position `start`; return all [KV heads, room, width]."""
        stop = start + len(keys)
        stored = self._layers.get(layer)
        if stored is None or stored[0].shape[1] < stop:
            old = stored or (None, None)
            stored = self._layers[layer] = (_grown(old[0], keys, stop), _grown(old[1], values, stop))
        for room, new in zip(stored, (keys, values), strict=True):
            room[:, start:stop] = new.transpose(0, 1)
        return stored

    def _held(self) -> list[tuple[int, tuple[Tensor, Tensor]]]:
        return sorted(self._layers.items(), key=lambda item: item[0])

    def _token(self, prefix: Sequence[int], index: int) -> int:
        shift = len(self.head)
        return self.head[index] if index < shift else prefix[index - shift]


def _part(room: Tensor, start: int, stop: int) -> Tensor:
    return room[:, start:stop].clone(memory_format=torch.contiguous_format)


def _grown(old: Tensor | None, new: Tensor, stop: int) -> Tensor:
    """A larger room that holds what the old one held."""
    held = 0 if old is None else old.shape[1]
    room = -(-max(stop, held + held // 2) // STEP) * STEP
    grown = new.new_zeros(new.shape[1], room, new.shape[2])  # what is hidden must still be finite
    if old is not None:
        grown[:, :held] = old
    return grown


@dataclass(slots=True)
class Piece:
    """New tokens of one session; the last `wanted` of them need logits."""

    kv: SessionKV
    tokens: list[int]
    wanted: int = 0

    @property
    def start(self) -> int:
        """Position of the first new token."""
        return len(self.kv.tokens)


class _Tile:
    """Consecutive positions of one piece: rows `low`..`high` of the pass, n = high - low.

    Heads that share a KV head are folded into query rows: `queries` [1, KV heads, rows, width] is filled anew in each
    layer through the view `inside` [KV heads, shared, n, width]. mask [rows, keys] adds to the scores.
    """

    def __init__(self, low: int, high: int, mask: Tensor, like: Tensor, kv_heads: int) -> None:
        self.low, self.high, self.mask = low, high, mask
        self.shape = (high - low, kv_heads, like.shape[1] // kv_heads)
        self.queries = like.new_zeros(1, kv_heads, len(mask), like.shape[2])
        n, _, shared = self.shape
        self.inside = self.queries[0, :, : shared * n].view(kv_heads, shared, n, -1)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float | None, result: Tensor) -> None:
        """Attend with queries [N, heads, width] of the pass and fill this tile's rows of result [N, heads, width]."""
        n, kv_heads, shared = self.shape
        seen = self.mask.shape[1]
        part = slice(self.low, self.high)
        self.inside.copy_(queries[part].unflatten(1, (kv_heads, shared)).permute(1, 2, 0, 3))
        folded = functional.scaled_dot_product_attention(
            self.queries, keys[None, :, :seen], values[None, :, :seen], attn_mask=self.mask, scale=scale
        )
        kept = folded[0, :, : shared * n].unflatten(1, (shared, n))
        result[part].unflatten(1, (kv_heads, shared)).copy_(kept.permute(2, 0, 1, 3))


@dataclass(slots=True)
class _Run:
    """One piece inside a pass: its rows and its tiles."""

    piece: Piece
    low: int
    high: int
    tiles: dict[tuple[int | None, ...], list[_Tile]] = field(default_factory=dict)


class Pass:
    """One forward pass: ids and positions [N] of all pieces end to end, and attention over the KV of each."""

    def __init__(self, pieces: Sequence[Piece], device: torch.device, width: int) -> None:
        """A token not below `width`, which a drafter may not know (D5), is embedded as token 0."""
        self.device = device
        self._runs: list[_Run] = []
        low = 0
        for piece in pieces:
            self._runs.append(_Run(piece, low, low + len(piece.tokens)))
            low += len(piece.tokens)
        known = [token if token < width else 0 for piece in pieces for token in piece.tokens]
        self.ids = torch.tensor(known, device=device)
        places = [index for piece in pieces for index in range(piece.start, piece.start + len(piece.tokens))]
        self.highest = max(places)
        self.positions = torch.tensor(places, device=device)
        self.attended = 0

    def wanted(self) -> list[int]:
        """Rows that need logits, in order."""
        return [row for run in self._runs for row in range(run.high - run.piece.wanted, run.high)]

    def commit(self) -> None:
        """Count the new tokens as held; called once all layers are through."""
        for run in self._runs:
            run.piece.kv.tokens += run.piece.tokens

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float | None, window: int | None = None
    ) -> Tensor:
        """Store this layer's keys and values [N, KV heads, width] and attend with queries [N, heads, width].

        window: how many keys a position sees, itself included; None: all before it. Returns [N, heads, width].
        """
        self.attended += 1
        result = queries.new_empty(*queries.shape[:2], values.shape[2])
        for run in self._runs:
            part = slice(run.low, run.high)
            held = run.piece.kv.write(layer, run.piece.start, keys[part], values[part])
            for tile in self._tiles(run, queries, keys.shape[1], window):
                tile.attend(queries, *held, scale, result)
        return result

    def _tiles(self, run: _Run, queries: Tensor, kv_heads: int, window: int | None) -> list[_Tile]:
        """Cut a run into tiles; the cut is the same in every layer of the same form."""
        form = (*queries.shape[1:], kv_heads, window)
        tiles = run.tiles.get(form)
        if tiles is None:
            tiles = run.tiles[form] = list(self._cut(run, queries, kv_heads, window))
        return tiles

    def _cut(self, run: _Run, queries: Tensor, kv_heads: int, window: int | None) -> Iterator[_Tile]:
        shared = queries.shape[1] // kv_heads
        most = max(1, MOST_ROWS // shared) if self.device.type == "cpu" else run.high - run.low
        low, first = run.low, run.piece.start
        while low < run.high:
            size = min(most, run.high - low)
            if self.device.type == "cpu":
                size = min(size, ROUND - first % ROUND)  # how many keys a row is given must follow from its position
            yield _Tile(low, low + size, _mask(first, size, window, shared, queries), queries, kv_heads)
            low, first = low + size, first + size


def _mask(first: int, n: int, window: int | None, shared: int, like: Tensor) -> Tensor:
    """What positions first..first+n-1 may see, repeated for each head that shares a KV head, then filled up."""
    place = torch.arange(first, first + n, device=like.device)[:, None]
    key = torch.arange(-(-(first + n) // ROUND) * ROUND, device=like.device)[None]
    hidden = key > place if window is None else (key > place) | (key <= place - window)
    mask = like.new_zeros(max(LEAST_ROWS, shared * n), key.shape[1])
    mask[: shared * n] = like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf).repeat(shared, 1)
    return mask
