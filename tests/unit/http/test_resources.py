"""Table 1 and the paths beside it (5.1, D3, D7, D10)."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import MethodNotAllowed, NotAssigned, UnknownResource
from sdcp.http.resources import (
    CACHE_RESOURCES,
    DRAFTER_RESOURCES,
    ROUTER_RESOURCES,
    VERIFIER_RESOURCES,
    Table,
    decode_id,
    encode_id,
    url,
)

ID = bytes(range(16))
VERIFIER = Table(VERIFIER_RESOURCES)


@pytest.mark.parametrize(
    ("table", "method", "path", "name"),
    [
        (VERIFIER_RESOURCES, "POST", "/sessions", "POST sessions"),
        (VERIFIER_RESOURCES, "PUT", f"/sessions/{encode_id(ID)}/drafter", "PUT sessions/{id}/drafter"),
        (VERIFIER_RESOURCES, "POST", "/proposals", "POST proposals"),
        (VERIFIER_RESOURCES, "GET", f"/sessions/{encode_id(ID)}/output", "GET sessions/{id}/output"),
        (VERIFIER_RESOURCES, "HEAD", f"/sessions/{encode_id(ID)}/output", "GET sessions/{id}/output"),
        (VERIFIER_RESOURCES, "POST", f"/sessions/{encode_id(ID)}/policy", "POST sessions/{id}/policy"),
        (DRAFTER_RESOURCES, "POST", "/assignments", "POST assignments"),
        (ROUTER_RESOURCES, "PUT", "/instances/a/status", "PUT instances/{instance}/status"),
        (ROUTER_RESOURCES, "POST", "/events", "POST events"),
        (CACHE_RESOURCES, "PATCH", "/logs/x", "PATCH logs/{name}"),
        (CACHE_RESOURCES, "DELETE", "/leases/x", "DELETE leases/{lease}"),
    ],
)
@pytest.mark.requirement("S5.1-bcp56")
def test_every_row_of_table_1_is_found(table: tuple, method: str, path: str, name: str) -> None:
    assert Table(table).match(method, path)[0].name == name


def test_a_session_path_gives_the_identifier() -> None:
    _, parameters = VERIFIER.match("GET", f"/sessions/{encode_id(ID)}/output")
    assert parameters == {"id": ID}


@pytest.mark.parametrize(
    "segment",
    [
        "",
        "AAECAwQFBgcICQoLDA0ODw==",  # padded
        "AAECAwQFBgcICQoLDA0OD",  # 15 octets and a bit
        "AAECAwQFBgcICQoLDA0ODxA",  # 17
        "AAECAwQFBgcICQoLDA0OD/",
        "AAECAwQFBgcICQoLDA0ODx",  # bits set beyond the last octet: a second spelling
        "AAECAwQFBgcICQoLDA0OD%77",
        "é" * 22,
    ],
)
@pytest.mark.decision("D3-404")
def test_what_is_no_identifier_is_404(segment: str) -> None:
    with pytest.raises(UnknownResource):
        VERIFIER.match("GET", f"/sessions/{segment}/output")


@given(st.binary(min_size=16, max_size=16))
def test_identifiers_survive_the_path(identifier: bytes) -> None:
    segment = encode_id(identifier)
    assert decode_id(segment) == identifier
    assert "=" not in segment


@pytest.mark.decision("D3-404")
@pytest.mark.parametrize("path", ["/", "", "/session", "/sessions/", "/sessions/x", "//sessions", "sessions", "*"])
def test_unknown_paths_are_404(path: str) -> None:
    with pytest.raises(UnknownResource):
        VERIFIER.match("POST", path)


@pytest.mark.decision("D3-405")
def test_another_method_is_405_with_allow() -> None:
    with pytest.raises(MethodNotAllowed) as refused:
        VERIFIER.match("GET", "/sessions")
    assert refused.value.headers == (("allow", "POST"),)
    with pytest.raises(MethodNotAllowed) as refused:
        Table(CACHE_RESOURCES).match("POST", "/objects/x")
    assert refused.value.headers == (("allow", "DELETE, GET, HEAD, PUT"),)
    with pytest.raises(MethodNotAllowed):
        VERIFIER.match("HEAD", "/sessions")


@pytest.mark.decision("D7-path")
@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_instance_names_travel_as_one_segment(instance: str) -> None:
    target = url("https://r/base/", "instances/{instance}/status", instance)
    resource, parameters = Table(ROUTER_RESOURCES, "/base").match("PUT", target.removeprefix("https://r"))
    assert resource.name == "PUT instances/{instance}/status"
    assert parameters == {"instance": instance}


@pytest.mark.decision("D7")
@pytest.mark.parametrize("segment", ["", "%FF", "a/b"])
def test_segments_that_are_no_name_are_404(segment: str) -> None:
    with pytest.raises(UnknownResource):
        Table(ROUTER_RESOURCES).match("PUT", f"/instances/{segment}/status")


def test_resources_lie_below_the_base_uri() -> None:
    table = Table(VERIFIER_RESOURCES, "/v1/")
    assert table.match("POST", "/v1/sessions")[0].name == "POST sessions"
    with pytest.raises(UnknownResource):
        table.match("POST", "/sessions")
    identifier = os.urandom(16)
    for base_uri in ("https://h:1/v1", "https://h:1/v1/"):
        assert (
            url(base_uri, "sessions/{id}/output", identifier)
            == f"https://h:1/v1/sessions/{encode_id(identifier)}/output"
        )


@pytest.mark.decision("D10-router", "D10-drafter", "D10-verifier", "D10-front-end")
def test_who_may_call_what() -> None:
    allowed = {
        resource.name: set(resource.roles)
        for resource in (*VERIFIER_RESOURCES, *DRAFTER_RESOURCES, *ROUTER_RESOURCES, *CACHE_RESOURCES)
    }
    assert allowed["POST sessions"] == allowed["PUT sessions/{id}/drafter"] == allowed["POST assignments"] == {"router"}
    assert allowed["POST proposals"] == {"drafter"}
    assert allowed["GET sessions/{id}/output"] == {"router", "front-end", "drafter"}  # the drafter by D9a
    assert allowed["POST events"] == {"verifier"}
    assert allowed["PUT instances/{instance}/status"] == {"drafter", "verifier"}
    assert allowed["GET logs"] == allowed["GET leases"] == {"router"}
    assert allowed["GET objects"] == {"router", "cache"}
    assert allowed["PATCH logs/{name}"] == allowed["GET logs/{name}"] == {"router", "verifier"}


@pytest.mark.decision("D3-403")
def test_refusals_at_proposals_are_not_assigned() -> None:
    assert VERIFIER.match("POST", "/proposals")[0].refusal is NotAssigned
