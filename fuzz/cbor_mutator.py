"""Changes CBOR as CBOR: values, forms, keys and structure, so that what comes out is mostly well-formed still.

Every function takes its luck as a `random.Random`. Not here: plain octet mutation, which is libFuzzer's.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from random import Random

from fuzz.trees import INDEFINITE, Node, read_all, write

EDGES = (0, 1, 2, 3, 4, 5, 23, 24, 63, 64, 65, 100, 101, 255, 256, 999, 1000, 1001, 65535, 65536, 2**31, 2**32 - 1)
LARGE = (2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
SIZES = (0, 1, 15, 16, 17, 31, 32, 33)
Octets = Callable[[bytes, int], bytes]


def mutate_sequence(data: bytes, luck: Random, octets: Octets) -> bytes:
    """A CBOR sequence (one item is one, too) with one to four changes; what follows the last whole item stays."""
    nodes, rest = read_all(data)
    if not nodes:
        return octets(data, len(data) + 16)
    for _ in range(luck.choice((1, 1, 2, 4))):
        _change(nodes, luck, octets)
    return b"".join(map(write, nodes)) + rest


def _change(nodes: list[Node], luck: Random, octets: Octets) -> None:
    everything = [node for root in nodes for node in root.walk()]
    node = luck.choice(everything)
    match luck.randrange(10):
        case 0 | 1:
            _change_value(node, luck, octets)
        case 2:
            _change_form(node, luck)
        case 3 | 4 | 5:
            _change_children(node, everything, luck)
        case 6:
            other = luck.choice(everything)
            node.major, node.argument, node.width = other.major, other.argument, other.width
            node.octets, node.children = other.octets, deepcopy(other.children)
        case 7:
            wrapped = deepcopy(node)
            node.major, node.argument, node.width, node.octets = luck.choice((4, 6)), luck.choice(EDGES), 0, b""
            node.children = [wrapped]
        case 8:
            _replace(node, leaf(luck))
        case 9:
            _change_sequence(nodes, luck)


def _change_sequence(nodes: list[Node], luck: Random) -> None:
    """One item of the sequence more, one less, or two in the other order."""
    at = luck.randrange(len(nodes))
    match luck.randrange(3):
        case 0:
            nodes.insert(at, deepcopy(luck.choice(nodes)))
        case 1 if len(nodes) > 1:
            del nodes[at]
        case _:
            nodes.append(nodes.pop(at))


def leaf(luck: Random) -> Node:
    """Some item without others in it."""
    match luck.randrange(5):
        case 0:
            return Node(0, luck.choice(EDGES + LARGE))
        case 1:
            return Node(1, luck.choice(EDGES + LARGE))
        case 2:
            return Node(2, octets=luck.randbytes(luck.choice(SIZES)))
        case 3:
            return Node(3, octets=b"x" * luck.choice(SIZES))
    width = luck.choice((0, 2, 4, 8))
    return Node(7, luck.randrange(20, 24) if width == 0 else luck.getrandbits(8 * width), width)


def _replace(node: Node, other: Node) -> None:
    node.major, node.argument, node.width = other.major, other.argument, other.width
    node.octets, node.children = other.octets, other.children


def _change_value(node: Node, luck: Random, octets: Octets) -> None:
    if node.major in (2, 3):
        node.octets = octets(node.octets, len(node.octets) + 8) if luck.random() < 0.7 else b"y" * luck.choice(SIZES)
        if node.major == 3:
            node.octets = node.octets.decode("utf-8", "ignore").encode()
    elif luck.random() < 0.5:
        node.argument = luck.choice(EDGES + LARGE)
    else:
        node.argument = max(0, node.argument + luck.choice((-2, -1, 1, 2, 2**32)))


def _change_form(node: Node, luck: Random) -> None:
    """A wider head, or chunks and a break in the place of a length."""
    if 2 <= node.major <= 5 and luck.random() < 0.5:
        if node.major in (2, 3) and node.width != INDEFINITE:
            cut = luck.randrange(len(node.octets) + 1)
            node.children = [Node(node.major, octets=part) for part in (node.octets[:cut], node.octets[cut:])]
            node.octets = b""
        node.width = INDEFINITE
    elif node.width != INDEFINITE and node.major != 7:
        node.width = luck.choice((0, 1, 2, 4, 8))


def _change_children(node: Node, everything: list[Node], luck: Random) -> None:
    step = 2 if node.major == 5 else 1
    if node.major not in (4, 5):
        return
    at = step * luck.randrange(len(node.children) // step + 1)
    match luck.randrange(4):
        case 0:
            del node.children[at : at + step]
        case 1 if node.children:
            at = min(at, len(node.children) - step)
            node.children[at:at] = deepcopy(node.children[at : at + step])
        case 2:
            node.children[at:at] = [deepcopy(luck.choice(everything)) for _ in range(step)]
        case 3:
            node.children[at:at] = [leaf(luck) for _ in range(step)]
