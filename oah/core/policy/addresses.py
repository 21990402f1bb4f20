"""Where an outgoing call may go: what a URL may look like, and which address may be connected to.

A name says nothing about where it leads, so the address that is really connected to is judged, each time; the URL is
judged for what can be seen in it. Ranges are those of the IANA special-purpose address registries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from oah.errors import InvalidRequest

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LONGEST_URL = 2_048
PORTS = {"http": 80, "https": 443}

_URL = re.compile(r"^(https?)://([^/?#]*)([/?][^#]*)?\Z", re.IGNORECASE)
_AUTHORITY = re.compile(r"^(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?\Z")
_LABEL = re.compile(r"^[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\Z")
_NUMBER = re.compile(r"^(?:[0-9]+|0[xX][0-9A-Fa-f]*)\Z")


class Range(StrEnum):
    """What kind of address it is, where it is not a public one."""

    PRIVATE = "private"
    LOOPBACK = "loopback"
    SHARED = "shared"
    """Carrier-grade NAT."""
    LINK_LOCAL = "link-local"
    """Also where clouds serve credentials."""
    RESERVED = "reserved"
    UNSPECIFIED = "unspecified"
    MULTICAST = "multicast"


_INSIDE = frozenset({Range.PRIVATE, Range.LOOPBACK, Range.SHARED})
_NEVER = frozenset({Range.UNSPECIFIED, Range.MULTICAST})

_RANGES: tuple[tuple[Network, Range], ...] = tuple(
    (ip_network(network), kind)
    for kind, networks in (
        (Range.UNSPECIFIED, ("0.0.0.0/8", "::/128")),
        (Range.LOOPBACK, ("127.0.0.0/8", "::1/128")),
        (Range.PRIVATE, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10", "64:ff9b:1::/48")),
        (Range.SHARED, ("100.64.0.0/10",)),
        (Range.LINK_LOCAL, ("169.254.0.0/16", "fe80::/10")),
        (Range.MULTICAST, ("224.0.0.0/4", "ff00::/8")),
        (Range.RESERVED, ("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24")),
        (Range.RESERVED, ("203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")),
    )
    for network in networks
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_EMBEDDING = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))
"""IPv6 ranges whose addresses stand for the IPv4 address in their last four bytes."""


@dataclass(frozen=True, slots=True)
class Rules:
    """``allow_private``: private, loopback and shared addresses, too. ``allowed``: networks that are allowed whatever
    they are; unspecified and multicast addresses never are."""

    allow_private: bool = False
    allowed: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, taken apart. ``host``: lower case, without brackets; ``path``: with the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """As a Host header names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks in CIDR form. Raises InvalidRequest."""
    try:
        return tuple(ip_network(text.strip(), strict=False) for text in texts)
    except ValueError as error:
        raise InvalidRequest(f"no network: {error}", hint="an address or CIDR form, e.g. 10.1.0.0/16") from error


def target(url: str) -> Target:
    """The URL, taken apart. Raises InvalidRequest for what is no plain http or https URL."""
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise _invalid("a URL has at most 2048 printable ASCII characters without spaces")
    found = _URL.match(url)
    if found is None:
        raise _invalid("it must begin with http:// or https:// and have no fragment")
    if "@" in found[2]:
        raise _invalid("user and password do not belong into a URL")
    parts = _AUTHORITY.match(found[2])
    if parts is None:
        raise _invalid("it names no host")
    scheme = found[1].lower()
    port = PORTS[scheme] if parts[3] is None else int(parts[3])
    if not 1 <= port <= 65_535:
        raise _invalid("a port is 1 to 65535")
    path = found[3] or "/"
    return Target(scheme, _host(parts[1], parts[2]), port, path if path.startswith("/") else f"/{path}")


def _host(literal: str | None, name: str | None) -> str:
    if literal is not None:
        try:
            return str(IPv6Address(literal))
        except ValueError as error:
            raise _invalid("the host is no IPv6 address") from error
    assert name is not None  # the pattern has one of both
    host = name.lower()
    labels = host.removesuffix(".").split(".")
    if _NUMBER.match(labels[-1]):
        try:  # 127.1, 0x7f000001 and 2130706433 are addresses to some resolvers: only one form is taken
            return str(IPv4Address(host))
        except ValueError as error:
            raise _invalid("the host is no IPv4 address in dotted form") from error
    if len(host) > 253 or not all(_LABEL.match(label) for label in labels):
        raise _invalid("the host is no name")
    return host


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(f"the URL is not usable: {why}", code="invalid_url")


def check(where: Target, rules: Rules) -> None:
    """Refuse what can be seen in the URL itself. Raises InvalidRequest ``address_refused``."""
    host = where.host.removesuffix(".")
    name = "127.0.0.1" if host == "localhost" or host.endswith(".localhost") else host
    try:
        ip_address(name)
    except ValueError:
        return  # a name: judged when it is known where it leads
    why = refusal(name, rules)
    if why is not None:
        raise InvalidRequest(
            f"{where.host} is refused: {why}",
            code="address_refused",
            hint="the operator may allow it: OAH_WEBHOOKS__ALLOW_PRIVATE, OAH_WEBHOOKS__ALLOWED_NETWORKS",
        )


def refusal(address: str, rules: Rules) -> str | None:
    """Why a call may not be connected to this address; None: it may. Raises ValueError for what is no address."""
    found = ip_address(address.partition("%")[0])
    meant = _meant(found)
    kind = range_of(meant)
    if kind is None:
        return None
    if kind not in _NEVER:
        if kind in _INSIDE and rules.allow_private:
            return None
        if any(each in network for network in rules.allowed for each in (found, meant)):
            return None
    return f"{found} is a {kind} address"


def range_of(address: Address) -> Range | None:
    """What kind of address it is; None: a public one."""
    for network, kind in _RANGES:
        if address in network:
            return kind
    if isinstance(address, IPv6Address) and address not in _GLOBAL_V6:
        return Range.RESERVED
    return None


def _meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it does; else itself."""
    if isinstance(address, IPv4Address) or int(address) <= 1:
        return address
    if any(address in network for network in _EMBEDDING):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
