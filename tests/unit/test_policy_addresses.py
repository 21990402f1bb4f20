"""Where outgoing calls may go: every form of an inner address is refused, whatever it is dressed as."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.policy import addresses
from oah.core.policy.addresses import Range, Rules, check, networks, refusal, target
from oah.errors import InvalidRequest

STRICT = Rules()
INNER = (
    *("127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "100.127.255.255", "0.0.0.0", "0.1.2.3", "255.255.255.255", "224.0.0.1", "239.1.1.1", "192.0.0.8"),
    *("198.18.0.1", "192.0.2.7", "240.0.0.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1"),
    *("ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "64:ff9b::7f00:1"),
    *("64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1", "100::1", "4000::1"),
)
OUTER = ("1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "192.169.0.1", "2606:4700::1111", "::ffff:1.1.1.1")


@pytest.mark.parametrize("address", INNER)
def test_inner_addresses_are_refused(address: str) -> None:
    assert refusal(address, STRICT)


@pytest.mark.parametrize("address", OUTER)
def test_public_addresses_are_allowed(address: str) -> None:
    assert refusal(address, STRICT) is None


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_each_dress(address: IPv4Address) -> None:
    plain = refusal(str(address), STRICT) is None
    for dress in ("::ffff:0:0", "64:ff9b::"):
        dressed = IPv6Address(int(IPv6Address(dress)) + int(address))
        assert (refusal(str(dressed), STRICT) is None) == plain, dressed


@given(st.ip_addresses())
def test_what_the_library_calls_inner_is_refused(address: IPv4Address | IPv6Address) -> None:
    """An independent opinion: Python's own tables."""
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        assert refusal(str(address), STRICT), address
    if refusal(str(address), STRICT) is None:
        assert address.is_global or "::ffff:" in str(address) or str(address).startswith("64:ff9b::")


@given(st.ip_addresses())
def test_what_is_allowed_is_only_ever_more_with_more_allowed(address: IPv4Address | IPv6Address) -> None:
    rules = (STRICT, Rules(allow_private=True), Rules(allow_private=True, allowed=networks(["0.0.0.0/0", "::/0"])))
    open_ = [refusal(str(address), each) is None for each in rules]
    assert open_ == sorted(open_)
    kind = addresses.range_of(ipaddress.ip_address(str(address)))
    if kind in (Range.UNSPECIFIED, Range.MULTICAST):
        assert open_ in ([False] * 3, [True] * 3) or int(address) < 2**32  # ::/96 stands for IPv4


def test_private_may_be_allowed_and_link_local_only_by_name() -> None:
    private = Rules(allow_private=True)
    assert refusal("127.0.0.1", private) is None
    assert refusal("10.1.1.1", private) is None
    assert refusal("100.64.0.1", private) is None
    assert refusal("169.254.169.254", private), "credentials of clouds are served there"
    named = Rules(allowed=networks(["10.1.0.0/16", "fe80::/10"]))
    assert refusal("10.1.2.3", named) is None
    assert refusal("::ffff:10.1.2.3", named) is None
    assert refusal("fe80::9%eth1", named) is None
    assert refusal("10.2.0.1", named)
    assert refusal("0.0.0.0", Rules(allow_private=True, allowed=networks(["0.0.0.0/0"])))
    with pytest.raises(InvalidRequest):
        networks(["10.0.0.0/99"])


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.org", "ftp://example.org/", "file:///etc/passwd", "http://", "http:///x", "https://a b/"),
        *("http://user@example.org/", "http://user:pw@example.org/", "http://example.org\\@127.0.0.1/", "http://[::1/"),
        *("http://example.org:0/", "http://example.org:65536/", "http://example.org:x/", "http://2130706433/"),
        *("http://0x7f000001/", "http://127.1/", "http://0177.0.0.1/", "http://1.2.3.4.5/", "http://1.2.3.256/"),
        *("http://example.org/#part", "http://exa\nmple.org/", "http://exämple.org/", "http://[fe80::1%25eth0]/"),
        *("http://-x.org/", "http://a..b/", "http://" + "a" * 300 + ".org/", "http://example.org/" + "x" * 2100),
    ],
)
def test_what_is_no_plain_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        target(url)


def test_a_url_is_taken_apart() -> None:
    found = target("HTTPS://Hooks.Example.org:8443/a/b?x=1&y=%20")
    assert (found.scheme, found.host, found.port, found.path) == ("https", "hooks.example.org", 8443, "/a/b?x=1&y=%20")
    assert found.authority == "hooks.example.org:8443"
    assert target("http://example.org").authority == "example.org"
    assert target("https://example.org?x").path == "/?x"
    assert target("http://[2606:4700::1111]:8080/").authority == "[2606:4700::1111]:8080"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "x.localhost", "127.0.0.1", "[::1]", "[::ffff:7f00:1]"])
def test_what_shows_in_the_url_is_refused_at_once(host: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(target(f"http://{host}/"), STRICT)
    assert refused.value.code == "address_refused"
    check(target(f"http://{host}/"), Rules(allow_private=True))


def test_a_name_is_judged_when_it_is_known_where_it_leads() -> None:
    check(target("http://inner.example.org/"), STRICT)
