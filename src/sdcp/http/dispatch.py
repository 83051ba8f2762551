"""From a table of resources and one endpoint for each to a handler: match, authorize, check media types (5.1), call.

Order of refusals: 404 and 405, then 403 by role (D3, D10), then 415 and 406. Bodies are read by the endpoint, with
`receive`, so that an endpoint that streams can.

Not here: the tables (`sdcp.http.resources`), and the server that calls the handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from sdcp.errors import NotAcceptable, UnsupportedMediaType
from sdcp.http.exchange import Handler, Request, Response
from sdcp.http.identity import Peer
from sdcp.http.resources import ANY, SDCP_CBOR, Parameters, Resource, Table
from sdcp.messages.fields import Message
from sdcp.wire.cbor import MAX_BYTES

M = TypeVar("M", bound=Message)
_BODILESS = ("GET", "HEAD", "DELETE")
Endpoint = Callable[[Request, Parameters], Awaitable[Response]]


def dispatcher(table: Table, endpoints: Mapping[str, Endpoint]) -> Handler:
    """A handler for all resources of `table`; `endpoints` has one for each resource's name, and no other.

    Raises ValueError when it does not.
    """
    names = {resource.name for resource in table.resources}
    if wrong := names ^ endpoints.keys():
        raise ValueError(f"resources and endpoints differ: {', '.join(sorted(wrong))}")

    def handle(request: Request) -> Awaitable[Response]:  # no coroutine of its own: each costs time at every step
        resource, parameters = table.match(request.method, request.path)
        authorize(resource, request.peer)
        check_media(resource, request)
        return endpoints[resource.name](request, parameters)

    return handle


def authorize(resource: Resource, peer: Peer) -> None:
    """Raise the resource's refusal (403) unless the peer's certificate bears a role that may call it (D10)."""
    if resource.roles.isdisjoint(peer.roles):
        needed = " or ".join(sorted(resource.roles))
        raise resource.refusal(f"{resource.name} needs a certificate with the role {needed}; yours has not")


def check_media(resource: Resource, request: Request) -> None:
    """Raise UnsupportedMediaType (415) or NotAcceptable (406) where the media types do not meet (D3)."""
    given = request.headers.get("content-type")
    if resource.method not in _BODILESS and ANY not in resource.takes and _type(given) not in resource.takes:
        wanted = " or ".join(resource.takes)
        raise UnsupportedMediaType(f"{resource.name} takes a body of {wanted}, not of {given or 'no named type'}")
    accept = request.headers.get("accept")
    if accept is not None and resource.gives is not None and not accepts(accept, resource.gives):
        raise NotAcceptable(f"{resource.name} answers with {resource.gives}, which your Accept does not take")


def accepts(accept: str, media_type: str) -> bool:
    """Whether an Accept field (RFC 9110 section 12.5.1) takes a media type: the most specific range decides."""
    best, weight = -1, 0.0
    main = media_type.partition("/")[0]
    specificity = {ANY: 0, f"{main}/*": 1, media_type: 2}
    for part in accept.split(","):
        media_range, *parameters = [piece.strip().lower() for piece in part.split(";")]
        rank = specificity.get(media_range, -1)
        if rank > best:
            best, weight = rank, _weight(parameters)
    return weight > 0.0


async def receive(request: Request, kind: type[M], limit: int = MAX_BYTES) -> M:
    """The message of class `kind` that is the request's body. Raises BodyTooLarge, MalformedBody, BadContract."""
    return kind.decode(await request.body(limit))


def answer(message: Message, status: int = 200) -> Response:
    """A message as the answer."""
    return Response(status, (("content-type", SDCP_CBOR),), message.encode())


def no_content() -> Response:
    """The answer 204."""
    return Response(204)


def _type(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
