"""What a Valkey or Redis server must be like to keep commit logs (docs/decisions.md, D43). Pure: told, it judges.

A server that answers before its disk has the append, that may evict a log, or that is somebody's replica would lose
what a verifier has already told its readers (6.8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sdcp.stores.valkey_address import Address

SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")
"""What `complaints` wants to know by CONFIG GET."""

_OLDEST = (7, 0)
_WITH_WAITAOF = (7, 2)


def complaints(info: Mapping[str, str], settings: Mapping[str, str] | None, address: Address) -> list[str]:
    """What stands against a server: `info` as of INFO (empty: not permitted), `settings` as of CONFIG GET (None)."""
    found = []
    hidden = " and ".join(name for name, told in (("INFO", info), ("CONFIG GET", settings is not None)) if not told)
    if hidden and not address.assume_durable:
        found.append(
            f"it does not permit {hidden}, so that nobody knows whether it does; permit it to this user, or, where "
            "whoever runs it vouches for `appendonly yes`, `appendfsync always` and a policy that evicts no log, add "
            "assume-durable=1 to the URI"
        )
    if info:
        found += _of_info(info, address)
    if settings is not None:
        found += _of_settings(settings)
    return found


def _of_info(info: Mapping[str, str], address: Address) -> list[str]:
    found = []
    version = _version(info)
    if version < _OLDEST:
        found.append(f"it is version {'.'.join(map(str, version))}; 7.0 is the oldest that will do")
    if info.get("cluster_enabled") == "1":
        found.append("it is part of a cluster, and a cache is on one server: use one with `cluster-enabled no`")
    if info.get("role") != "master":
        found.append("it is a replica, and takes no appends: give the address of its primary")
    if info.get("aof_enabled") != "1":
        found.append(_advice("appendonly", "no", "yes", "it forgets everything when it stops"))
    if info.get("aof_rewrite_in_progress") == "1" and info.get("aof_base_size") == "0":
        found.append("its append-only file is being written for the first time: try again when that is done")
    if info.get("aof_last_write_status", "ok") != "ok":
        found.append("its last write to the append-only file failed: see its log, and make room on its disk")
    if address.replicas and version < _WITH_WAITAOF:
        found.append(
            "replicas= needs WAITAOF, which Valkey, and Redis from 7.2, have: leave it out, or use one of those"
        )
    if int(info.get("connected_slaves", "0")) < address.replicas:
        found.append(f"it has {info.get('connected_slaves')} replicas, and the URI wants {address.replicas}")
    return found


def _of_settings(settings: Mapping[str, str]) -> list[str]:
    found = []
    sync = settings.get("appendfsync", "")
    if sync != "always":
        found.append(_advice("appendfsync", sync, "always", "an acknowledged append may not be on the disk yet"))
    if settings.get("no-appendfsync-on-rewrite") != "no":
        found.append(_advice("no-appendfsync-on-rewrite", "yes", "no", "it does not sync while it rewrites the file"))
    policy = settings.get("maxmemory-policy", "")
    if policy != "noeviction" and not policy.startswith("volatile-"):
        found.append(_advice("maxmemory-policy", policy, "noeviction", "it may evict logs and leased objects"))
    return found


def _advice(setting: str, value: str, wanted: str, since: str) -> str:
    return (
        f"{setting} is {value}: {since}; write `{setting} {wanted}` into its configuration file and restart it, or "
        f"`CONFIG SET {setting} {wanted}` and `CONFIG REWRITE`"
    )


def _version(info: Mapping[str, str]) -> tuple[int, ...]:
    """Of the commands that it has: Valkey says which Redis it is like."""
    return tuple(int(part) for part in re.findall(r"\d+", info.get("redis_version", "0"))[:2])


def fields(info: bytes) -> dict[str, str]:
    """The answer to INFO, taken apart."""
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
