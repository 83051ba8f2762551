"""Where a process listens, as the kernel has it: Linux's /proc, not what the process says of itself."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

LISTENING = "0A"
PROC = Path("/proc")


def listening(pid: int) -> set[str]:
    """`address:port` of each TCP socket that this process, or a descendant of it, has open to listen."""
    return {place for each in family(pid) for place in own(each)}


def family(pid: int) -> list[int]:
    """The process and its descendants."""
    children = [int(word) for file in (PROC / f"{pid}/task").glob("*/children") for word in file.read_text().split()]
    return [pid, *(each for child in children for each in family(child))]


def own(pid: int) -> set[str]:
    inodes = sockets(pid)
    found = set()
    for table in ("tcp", "tcp6"):
        for line in (PROC / f"{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                found.add(place(fields[1]))
    return found


def sockets(pid: int) -> set[str]:
    """The inodes of the sockets among its file descriptors."""
    found = set()
    for descriptor in (PROC / f"{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
            if match:
                found.add(match[1])
    return found


def place(written: str) -> str:
    """`127.0.0.1:80` for 0100007F:0050. The kernel writes an address as words of 32 bits in the order of the host."""
    address, _, port = written.partition(":")
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    octets = b"".join(words)
    return f"{IPv4Address(octets) if len(octets) == 4 else IPv6Address(octets)}:{int(port, 16)}"
