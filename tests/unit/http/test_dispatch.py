"""From a request to its endpoint: 404, 405, 403, 415, 406, in this order (D3, D10)."""

import json
from collections.abc import Callable

import pytest

from sdcp.errors import Forbidden, NotAcceptable, NotAssigned, UnsupportedMediaType
from sdcp.http.dispatch import accepts, answer, authorize, check_media, dispatcher, no_content, receive
from sdcp.http.exchange import Request, Response
from sdcp.http.identity import Peer
from sdcp.http.resources import (
    CACHE_RESOURCES,
    ROUTER_RESOURCES,
    VERIFIER_RESOURCES,
    Parameters,
    Resource,
    Table,
    encode_id,
)
from sdcp.messages.output import Event
from sdcp.messages.session import Policy

BY_NAME = {row.name: row for row in (*VERIFIER_RESOURCES, *ROUTER_RESOURCES, *CACHE_RESOURCES)}


def peer(*roles: str) -> Peer:
    return Peer(frozenset(), frozenset(), frozenset(), frozenset(roles))


class Whole:
    """A body that is all there."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def next_chunk(self) -> bytes | None:
        body, self.body = self.body, b""
        return body or None

    async def read(self, limit: int, too_large: Callable[[int], Exception]) -> bytes:
        return self.body


def request(method: str, path: str = "/", body: bytes = b"", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, path, "", "a", named, peer("router"), Whole(body))


@pytest.mark.decision("D10")
@pytest.mark.parametrize("name", sorted(BY_NAME))
@pytest.mark.parametrize("role", ["router", "verifier", "drafter", "cache", "front-end"])
def test_a_role_gets_in_only_where_the_table_says(name: str, role: str) -> None:
    row = BY_NAME[name]
    if role in row.roles:
        authorize(row, peer(role))
        return
    with pytest.raises(row.refusal, match=f"{name.split()[0]} .* needs a certificate with the role"):
        authorize(row, peer(role))


@pytest.mark.decision("D3-403")
def test_the_refusal_at_proposals_is_not_assigned_elsewhere_forbidden() -> None:
    with pytest.raises(NotAssigned):
        authorize(BY_NAME["POST proposals"], peer("router"))
    with pytest.raises(Forbidden):
        authorize(BY_NAME["POST sessions"], peer())


@pytest.mark.decision("D3")
@pytest.mark.parametrize("given", ["application/sdcp+cbor", "Application/SDCP+CBOR; v=1", " application/sdcp+cbor "])
def test_the_media_type_of_bodies(given: str) -> None:
    check_media(BY_NAME["POST proposals"], request("POST", content_type=given))


@pytest.mark.decision("D3-media-type")
@pytest.mark.parametrize("given", [None, "", "application/cbor", "application/json", "application/sdcp+cborx"])
def test_other_media_types_are_415(given: str | None) -> None:
    headers = {} if given is None else {"content_type": given}
    with pytest.raises(UnsupportedMediaType, match=r"takes a body of application/sdcp\+cbor"):
        check_media(BY_NAME["POST proposals"], request("POST", **headers))


def test_objects_may_be_of_any_type_and_reads_have_no_body() -> None:
    check_media(BY_NAME["PUT objects/{name}"], request("PUT"))
    check_media(BY_NAME["GET sessions/{id}/output"], request("GET"))
    check_media(BY_NAME["GET sessions/{id}/output"], request("HEAD"))
    check_media(BY_NAME["DELETE leases/{lease}"], request("DELETE"))
    with pytest.raises(UnsupportedMediaType):
        check_media(BY_NAME["PATCH logs/{name}"], request("PATCH", content_type="application/sdcp+cbor"))


@pytest.mark.decision("D3-media-type")
def test_an_accept_that_does_not_take_the_answer_is_406() -> None:
    row = BY_NAME["GET sessions/{id}/output"]
    check_media(row, request("GET", accept="application/problem+json, application/sdcp+cbor"))
    with pytest.raises(NotAcceptable):
        check_media(row, request("GET", accept="application/json"))
    # An answer without a body suits everybody.
    check_media(BY_NAME["POST events"], request("POST", content_type="application/sdcp+cbor", accept="text/html"))


@pytest.mark.parametrize(
    ("accept", "taken"),
    [
        ("*/*", True),
        ("application/*", True),
        ("text/*", False),
        ("application/sdcp+cbor;q=0", False),
        ("application/sdcp+cbor; q=0, */*", False),  # the most specific range decides
        ("*/*;q=0, application/sdcp+cbor;q=0.1", True),
        ("text/html, */*;q=0.5", True),
        ("application/sdcp+cbor;q=x", False),
        ("", False),
    ],
)
def test_accept(accept: str, taken: bool) -> None:
    assert accepts(accept, "application/sdcp+cbor") is taken


def test_every_resource_has_one_endpoint() -> None:
    async def endpoint(request: Request, parameters: Parameters) -> Response:
        return no_content()

    table = Table([BY_NAME["POST events"], BY_NAME["POST proposals"]])
    with pytest.raises(ValueError, match="POST proposals"):
        dispatcher(table, {"POST events": endpoint})
    with pytest.raises(ValueError, match="POST else"):
        dispatcher(table, {"POST events": endpoint, "POST proposals": endpoint, "POST else": endpoint})


async def test_over_the_wire(serving: Callable) -> None:
    seen: list[tuple[Policy, Parameters]] = []
    session = bytes(range(16))

    async def policy(request: Request, parameters: Parameters) -> Response:
        message = await receive(request, Policy)
        seen.append((message, parameters))
        return answer(message)

    row: Resource = BY_NAME["POST sessions/{id}/policy"]
    proposals = BY_NAME["POST proposals"]
    handler = dispatcher(Table([row, proposals]), {row.name: policy, proposals.name: policy})
    body = Policy.parse({"session": session, "from_round": 3, "sampling": {"top_k": 2}}).encode()
    cbor = (("content-type", "application/sdcp+cbor"),)
    async with serving(handler) as (_, client, base):
        path = f"{base}/sessions/{encode_id(session)}/policy"
        reply = await client.request("POST", path, body=body, headers=cbor)
        assert (reply.status, reply.headers["content-type"], reply.body) == (200, "application/sdcp+cbor", body)
        assert seen[0][1] == {"id": session}
        refused = await client.request("POST", f"{base}/proposals", body=body, headers=cbor)
        assert refused.status == 403
        assert json.loads(refused.body)["type"].endswith("#sdcp-not-assigned")
        statuses = [
            (await client.request("POST", f"{base}/elsewhere")).status,
            (await client.request("GET", path)).status,
            (await client.request("POST", path, body=body)).status,
            (await client.request("POST", path, body=body, headers=(*cbor, ("accept", "text/html")))).status,
            (await client.request("POST", path, body=b"\xff", headers=cbor)).status,
        ]
        assert statuses == [404, 405, 415, 406, 400]
        assert (await client.request("PUT", path)).headers["allow"] == "POST"
        assert len(seen) == 1


def test_an_event_is_received_whole() -> None:
    assert BY_NAME["POST events"].body is Event
