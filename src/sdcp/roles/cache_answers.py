"""What answers about objects and logs have in common: names, tags, the whole and its parts (docs/mlc.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sdcp.errors import UnknownResource
from sdcp.http.exchange import Response
from sdcp.roles.preconditions import tag
from sdcp.stores.store import NAME

Fields = tuple[tuple[str, str], ...]


def name_of(parameter: bytes | str) -> str:
    """The name in a path. UnknownResource for what is no name."""
    if isinstance(parameter, bytes) or not NAME.fullmatch(parameter):
        raise UnknownResource("names are 1 to 200 letters, digits, '-', '_', '~' and '.', and do not begin with '.'")
    return parameter


def whole(media_type: str, version: int, data: bytes | memoryview, more: Fields = ()) -> Response:
    """The answer 200."""
    return Response(200, (*_fields(media_type, version), *more), data)


def part_of(media_type: str, version: int, data: bytes | memoryview, content_range: str, more: Fields = ()) -> Response:
    """The answer 206."""
    return Response(206, (*_fields(media_type, version), ("content-range", content_range), *more), data)


def head(media_type: str, version: int, size: int, more: Fields = ()) -> Response:
    """The answer to HEAD, without reading what GET would send: an existence check renews nothing."""
    return Response(200, (*_fields(media_type, version), ("content-length", str(size)), *more), _unsent())


async def _unsent() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for octets in nothing:
        yield octets


def _fields(media_type: str, version: int) -> Fields:
    return (("content-type", media_type), ("etag", tag(version)), ("accept-ranges", "bytes"))
