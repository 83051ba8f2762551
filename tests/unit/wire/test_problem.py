"""Problem Details: RFC 9457, Table 2, D1 to D3."""

from __future__ import annotations

import json

import pytest

from sdcp import errors
from sdcp.errors import TABLE_2, ProblemError
from sdcp.wire.problem import (
    MAX_DETAIL,
    MEDIA_TYPE,
    decode_intact,
    decode_problem,
    decode_session_state,
    encode_problem,
    to_json,
)

TABLE = {
    "sdcp-stale-epoch": 409,
    "sdcp-stale-base": 409,
    "sdcp-q-unavailable": 409,
    "sdcp-bad-contract": 422,
    "sdcp-limit": 422,
    "sdcp-session-closed": 410,
    "sdcp-bad-proposal": 422,
    "sdcp-not-assigned": 403,
}
STATE = {"session": b"\xff" * 16, "epoch": 3, "round": 7, "committed": 9, "digest": b"\xfb\xef" * 16}


@pytest.mark.requirement(
    "S5.1-problem-details",
    "S6.9-problem-stale-epoch",
    "S6.9-problem-stale-base",
    "S6.9-problem-q-unavailable",
    "S6.9-problem-bad-contract",
    "S6.9-problem-limit",
    "S6.9-problem-session-closed",
    "S6.9-problem-bad-proposal",
    "S6.9-problem-not-assigned",
)
@pytest.mark.decision("D1-form")
def test_the_types_of_table_2_travel_by_name_status_and_detail() -> None:
    assert {kind.suffix: kind.status for kind in TABLE_2} == TABLE
    for kind in TABLE_2:
        status, headers, body = encode_problem(kind("Say why."))
        assert (status, headers) == (kind.status, (("content-type", MEDIA_TYPE),))
        assert json.loads(body) == {
            "type": f"https://iana.org/assignments/http-problem-types#{kind.suffix}",
            "title": kind.title,
            "status": kind.status,
            "detail": "Say why.",
        }
        assert type(decode_problem(status, MEDIA_TYPE, body)) is kind


@pytest.mark.decision("D1-about-blank", "D3")
@pytest.mark.parametrize("kind", [errors.Conflict, errors.Forbidden, errors.MalformedBody, errors.BodyTooLarge])
def test_all_else_is_about_blank_and_comes_back_by_its_status(kind: type[ProblemError]) -> None:
    status, _, body = encode_problem(kind("Say why."))
    assert json.loads(body)["type"] == "about:blank"
    back = decode_problem(status, MEDIA_TYPE, body)
    assert (type(back), back.detail, back.status) == (kind, "Say why.", kind.status)


def test_headers_of_the_error_travel() -> None:
    assert ("retry-after", "7") in encode_problem(errors.Overloaded("Later.", retry_after_s=7))[1]
    assert ("allow", "GET") in encode_problem(errors.MethodNotAllowed("No.", headers=(("allow", "GET"),)))[1]


@pytest.mark.requirement("S6.3-base-check")
@pytest.mark.decision("D2-session-state")
def test_the_state_in_a_problem_has_byte_strings_in_base64url_without_padding() -> None:
    body = json.loads(encode_problem(errors.StaleBase("Behind."), STATE)[2])
    assert body["session-state"] == {
        "session": "_____________________w",
        "epoch": 3,
        "round": 7,
        "committed": 9,
        "digest": "--_77_vv--_77_vv--_77_vv--_77_vv--_77_vv--8",
    }


def test_plain_values_map_to_json_as_rfc_8949_says() -> None:
    assert to_json([1, -1, "a", True, None, 1.5, {"a": b""}]) == [1, -1, "a", True, None, 1.5, {"a": ""}]
    assert to_json([float("nan"), float("inf"), object()]) == [None, None, None]


@pytest.mark.decision("D1-suffix")
@pytest.mark.parametrize(
    "problem_type",
    [
        "https://iana.org/assignments/http-problem-types#sdcp-stale-base",
        "https://www.iana.org/assignments/http-problem-types/http-problem-types.xhtml#sdcp-stale-base",
        "urn:example:sdcp-stale-base",
        "sdcp-stale-base",
    ],
)
def test_a_type_is_matched_by_its_suffix(problem_type: str) -> None:
    body = json.dumps({"type": problem_type}).encode()
    assert isinstance(decode_problem(409, "application/problem+json; charset=utf-8", body), errors.StaleBase)


def test_a_type_is_not_matched_elsewhere() -> None:
    body = json.dumps({"type": "https://example.org/sdcp-stale-base/other"}).encode()
    assert isinstance(decode_problem(409, MEDIA_TYPE, body), errors.Conflict)


@pytest.mark.requirement("S5.1-unlisted-status")
@pytest.mark.parametrize(
    ("status", "kind"),
    [(418, errors.MalformedBody), (499, errors.MalformedBody), (502, errors.InternalFault), (503, errors.Overloaded)],
)
def test_an_unlisted_status_is_handled_by_its_class(status: int, kind: type[ProblemError]) -> None:
    error = decode_problem(status, "text/html", b"<h1>Bad Gateway</h1>")
    assert type(error) is kind
    assert error.status == status
    assert str(status) in error.detail


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b"\xff", b'{"type": 5, "detail": 5}', b'{"detail": ""}', b"[" * 100_000]
)
def test_no_body_makes_the_reader_fail(body: bytes) -> None:
    error = decode_problem(409, MEDIA_TYPE, body)
    assert isinstance(error, errors.Conflict)
    assert error.detail


def test_the_media_type_decides_not_the_look_of_the_body() -> None:
    body = json.dumps({"type": "sdcp-limit", "detail": "x"}).encode()
    assert isinstance(decode_problem(422, "Application/Problem+JSON", body), errors.Limit)
    assert isinstance(decode_problem(422, "application/json", body), errors.InvalidContent)
    assert isinstance(decode_problem(422, None, body), errors.InvalidContent)


@pytest.mark.decision("D2-session-state")
def test_the_state_inside_a_problem_comes_out_as_it_went_in_or_as_nothing() -> None:
    state = {"session": b"\x01\xff", "epoch": 3, "digest": b"", "state": 2}
    _, headers, body = encode_problem(errors.StaleBase("behind"), state)
    kind = dict(headers)["content-type"]
    assert decode_session_state(kind, body) == {"session": "Af8", "epoch": 3, "digest": "", "state": 2}
    for other in (encode_problem(errors.StaleBase("behind"))[2], b'{"session-state": [1]}', b"[]", b"\xff"):
        assert decode_session_state(kind, other) == {}
    assert decode_session_state("text/plain", body) == {}


@pytest.mark.decision("D47-damaged")
def test_how_much_of_a_log_is_intact_comes_out_as_it_went_in_or_as_nothing() -> None:
    _, _, body = encode_problem(errors.LogDamaged("log 's' is damaged", intact=212))
    assert decode_intact(MEDIA_TYPE, body) == 212
    assert decode_intact("text/html", body) is None
    for other in (b"", b"{}", b'{"intact":"1"}', b'{"intact":-1}', b'{"intact":true}', b'{"intact":1.0}', b"[1]"):
        assert decode_intact(MEDIA_TYPE, other) is None


def test_an_endless_detail_is_cut() -> None:
    body = json.dumps({"detail": "x" * 100_000}).encode()
    assert len(decode_problem(400, MEDIA_TYPE, body).detail) == MAX_DETAIL


def test_a_detail_that_quotes_endlessly_is_cut_before_it_is_sent() -> None:
    _, headers, body = encode_problem(errors.BadContract("a key " + "x" * 100_000))
    assert len(body) < MAX_DETAIL + 500
    assert decode_problem(422, dict(headers)["content-type"], body).detail == "a key " + "x" * (MAX_DETAIL - 6)


def test_a_detail_that_has_no_utf_8_form_does_not_fail() -> None:
    assert json.loads(encode_problem(errors.Conflict("bad \ud800"))[2])["detail"].startswith("bad ")
