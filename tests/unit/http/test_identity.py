"""Who a peer is, and which roles it has (D9)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import ConfigurationError
from sdcp.http.identity import Peer, TrustPolicy, normalize_uri

pytestmark = pytest.mark.decision("D9")


def peer(*uris: str, dns: tuple[str, ...] = (), ips: tuple[str, ...] = (), trust: TrustPolicy | None = None) -> Peer:
    names = [("URI", uri) for uri in uris] + [("DNS", name) for name in dns] + [("IP Address", ip) for ip in ips]
    return Peer.of({"subjectAltName": tuple(names)}, trust or TrustPolicy())


@pytest.mark.parametrize(
    ("given_uri", "normal"),
    [
        ("HTTP://www.EXAMPLE.com/", "http://www.example.com/"),  # RFC 3986 6.2.2.1
        ("https://h/%3a%2F", "https://h/%3A%2F"),  # hex digits in capitals; reserved characters stay encoded
        ("https://h/%7Euser/%41", "https://h/~user/A"),  # 6.2.2.2: unreserved characters are decoded
        ("https://h/a/./b/../c", "https://h/a/c"),  # 6.2.2.3
        ("https://h/a/..", "https://h/"),
        ("https://h/../../a", "https://h/a"),
        ("https://h/a/%2E%2e/b", "https://h/b"),  # dots hidden in escapes are dots
        ("https://h", "https://h/"),  # 6.2.3: empty path
        ("https://h:443/x", "https://h/x"),  # default port
        ("https://h:/x", "https://h/x"),  # empty port
        ("https://h:8443", "https://h:8443/"),
        ("http://h:443", "http://h:443/"),  # not the default of this scheme
        ("https://[2001:DB8::1]:443/x", "https://[2001:db8::1]/x"),
        ("https://H%C3%A9/", "https://h%C3%A9/"),  # lower case host, capitals in its escapes
        ("https://user@H/x", "https://user@h/x"),
        ("https://h?q=%7e", "https://h/?q=~"),
        ("https://h/a//b", "https://h/a//b"),  # an empty segment is a segment
        ("URN:sdcp:role:router", "urn:sdcp:role:router"),
        ("spiffe://Cluster/ns/v", "spiffe://cluster/ns/v"),
    ],
)
@pytest.mark.decision("D9-client")
def test_normalization(given_uri: str, normal: str) -> None:
    assert normalize_uri(given_uri) == normal


@pytest.mark.parametrize(
    "text", ["", "no scheme", "//h/x", "/x", "https://h/ x", "https://h/\n", "https://h/é", "https://h/%zz", "1:x"]
)
def test_what_is_no_uri_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a URI"):
        normalize_uri(text)


@given(st.from_regex(r"https://[A-Za-z0-9.]{1,8}(:[0-9]{0,4})?(/[A-Za-z.%2eEfF~]{0,6}){0,4}", fullmatch=True))
def test_normalizing_twice_is_normalizing_once(uri: str) -> None:
    try:
        once = normalize_uri(uri)
    except ValueError:
        return
    assert normalize_uri(once) == once


@pytest.mark.decision("D9-client")
def test_owner_of_a_base_uri_by_san_uri() -> None:
    drafter = peer("https://Draft-1.example:443/d", dns=("draft-2.example",))
    assert drafter.owns("https://draft-1.example/d")
    assert drafter.owns("HTTPS://draft-1.EXAMPLE/x/../d")
    assert not drafter.owns("https://draft-1.example/d/")
    assert not drafter.owns("https://draft-1.example/")
    assert not drafter.owns("https://draft-1.example:8443/d")
    assert not drafter.owns("not a uri")


@pytest.mark.decision("D9-host")
def test_the_host_alone_counts_only_where_it_is_allowed() -> None:
    drafter = peer(dns=("Draft-2.example",), ips=("127.0.0.1", "0:0:0:0:0:0:0:1"))
    for base_uri in ("https://draft-2.example:9/x", "https://127.0.0.1:1/", "https://[::1]:8/", "https://[::1]/"):
        assert not drafter.owns(base_uri)
        assert drafter.owns(base_uri, allow_host=True)
    for base_uri in ("https://draft-3.example/", "https://127.0.0.2/", "https://x@other/", "urn:draft-2.example"):
        assert not drafter.owns(base_uri, allow_host=True)


def test_a_wildcard_name_owns_no_host() -> None:
    assert not peer(dns=("*.example",)).owns("https://a.example/", allow_host=True)


@pytest.mark.decision("D9-development")
def test_the_default_policy_reads_the_development_roles() -> None:
    assert peer("urn:sdcp:role:router", "urn:sdcp:role:front-end", "urn:sdcp:role:king").roles == {
        "router",
        "front-end",
    }
    assert peer("https://a/").roles == frozenset()
    assert peer("urn:sdcp:role:router:x").roles == frozenset()


@pytest.mark.decision("D9-spiffe")
def test_patterns_over_spiffe_names_and_addresses() -> None:
    trust = TrustPolicy(
        {
            "spiffe://cluster/ns/*/verifier": "verifier",
            "spiffe://cluster/front/**": "front-end",
            "dns:*.drafters.example": ["drafter"],
            "ip:10.0.0.0/8": ["router", "cache"],
        }
    )
    assert peer("spiffe://CLUSTER/ns/a/verifier", trust=trust).roles == {"verifier"}
    assert peer("spiffe://cluster/ns/a/b/verifier", trust=trust).roles == frozenset()
    assert peer("spiffe://cluster/ns//verifier", trust=trust).roles == frozenset()
    assert peer("spiffe://cluster/ns/a/verifier2", trust=trust).roles == frozenset()
    assert peer("spiffe://cluster/front/a/b", trust=trust).roles == {"front-end"}
    assert peer(dns=("One.Drafters.example",), trust=trust).roles == {"drafter"}
    assert peer(dns=("a.one.drafters.example",), trust=trust).roles == frozenset()
    assert peer(ips=("10.2.3.4",), trust=trust).roles == {"router", "cache"}
    assert peer(ips=("11.2.3.4", "::1"), trust=trust).roles == frozenset()


@pytest.mark.decision("D9-policy")
def test_a_policy_replaces_the_default() -> None:
    assert peer("urn:sdcp:role:router", trust=TrustPolicy({})).roles == frozenset()


@pytest.mark.parametrize("patterns", [{"no uri": "router"}, {"ip:x": "router"}, {"urn:a:b": "king"}])
@pytest.mark.decision("D9-policy")
def test_a_policy_that_cannot_work_is_refused(patterns: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="trust pattern"):
        TrustPolicy(patterns)


def test_names_that_cannot_be_read_name_nobody() -> None:
    odd = Peer.of({"subjectAltName": (("URI", "x y"), ("IP Address", "<invalid>"), ("email", "a@b"))}, TrustPolicy())
    assert (odd.uris, odd.dns, odd.ips) == (frozenset(), frozenset(), frozenset())
    assert Peer.of({}, TrustPolicy()).roles == frozenset()


def test_a_name_that_survives_renewal() -> None:
    assert peer("urn:sdcp:role:router", "https://b/", "https://a/").name == "https://a/"
    assert peer("urn:sdcp:role:router", dns=("d",)).name == "d"
