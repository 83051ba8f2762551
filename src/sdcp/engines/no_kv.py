"""What a target does that has no KV to share: only engines whose passes are dear have any (D44)."""

from __future__ import annotations

from collections.abc import Sequence

from sdcp.wire.kv_object import KvBlock


class NoKv:
    """The part of `sdcp.ports.Target` about KV, for engines that compute a prefix in no time."""

    kv_layout: str | None = None

    def held_kv(self, session: bytes, prefix: Sequence[int], length: int, *, empty_prompt: bool = False) -> int:
        """None is kept."""
        return 0

    def export_kv(self, session: bytes, prefix: Sequence[int], length: int) -> KvBlock | None:
        """There is none."""
        return None

    def import_kv(
        self, session: bytes, prefix: Sequence[int], length: int, block: KvBlock, *, empty_prompt: bool = False
    ) -> int:
        """ValueError: nothing fits."""
        raise ValueError("this engine has no KV to take up")
