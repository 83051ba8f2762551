"""Entity tags and ranges (RFC 9110 sections 8.8.3, 13, 14)."""

from __future__ import annotations

import pytest

from sdcp.errors import MalformedBody, PreconditionFailed
from sdcp.roles.preconditions import (
    PreconditionRequired,
    RangeNotSatisfiable,
    expected_version,
    tag,
    unchanged,
    wanted_part,
)


@pytest.mark.parametrize("field", ['"7"', '"6", "7"', ' "6" ,"7" ', "*"])
def test_an_append_goes_by_the_strong_tag(field):
    assert expected_version({"if-match": field}, 7) == 7


@pytest.mark.parametrize("field", ['W/"7"', '"6"', '"07"', '""'])
def test_a_weak_or_other_tag_does_not_match(field):
    with pytest.raises(PreconditionFailed):
        expected_version({"if-match": field}, 7)


def test_no_tag_matches_a_log_that_is_not_there():
    for field in ('"7"', "*"):
        with pytest.raises(PreconditionFailed):
            expected_version({"if-match": field}, None)


def test_the_first_append_says_so():
    assert expected_version({"if-none-match": "*"}, 7) is None
    with pytest.raises(MalformedBody):
        expected_version({"if-none-match": '"7"'}, 7)


@pytest.mark.parametrize("headers", [{}, {"if-match": '"7"', "if-none-match": "*"}])
def test_an_append_without_one_condition_is_refused(headers):
    with pytest.raises(PreconditionRequired):
        expected_version(headers, 7)


@pytest.mark.parametrize("field", ["7", '"7', '"7" "8"', "x"])
def test_what_is_no_list_of_tags_is_malformed(field):
    with pytest.raises(MalformedBody):
        expected_version({"if-match": field}, 7)


def test_if_none_match_compares_weakly():
    assert unchanged('"1", W/"7"', 7)
    assert unchanged("*", 7)
    assert not unchanged('"1"', 7)
    assert not unchanged(None, 7)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("bytes=0-", "bytes 0-9/10"),
        ("bytes=3-5", "bytes 3-5/10"),
        ("bytes=3-99", "bytes 3-9/10"),
        ("bytes=9-9", "bytes 9-9/10"),
        ("bytes=-4", "bytes 6-9/10"),
        ("bytes=-99", "bytes 0-9/10"),
    ],
)
def test_one_range_is_a_part(field, expected):
    part = wanted_part({"range": field}, 7, 10)
    assert part is not None
    assert part.content_range == expected


@pytest.mark.parametrize("field", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_a_range_of_nothing_is_416_and_says_how_much_there_is(field):
    with pytest.raises(RangeNotSatisfiable) as refusal:
        wanted_part({"range": field}, 7, 10)
    assert dict(refusal.value.headers) == {"content-range": "bytes */10", "etag": tag(7)}


@pytest.mark.parametrize("field", ["", "bytes=1-2,4-5", "bytes=5-3", "bytes=-", "items=0-1", "bytes=a-b"])
def test_any_other_range_means_all(field):
    assert wanted_part({"range": field}, 7, 10) is None


def test_if_range_of_another_version_means_all():
    assert wanted_part({"range": "bytes=1-2", "if-range": tag(6)}, 7, 10) is None
    assert wanted_part({"range": "bytes=1-2", "if-range": tag(7)}, 7, 10) is not None
