"""Bearer keys: stored as a digest, shown once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from oah.core.model.ids import KeyId, WorkspaceId
from oah.core.model.workspace import ApiKey, Scope
from oah.core.policy import admission
from oah.errors import InvalidRequest, NotFound, Unauthorized
from oah.ports.clock import Clock, Ids
from oah.ports.store import Store

PREFIX = "oahk_"
LONGEST = 256


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key with the only copy of its secret."""

    key: ApiKey
    secret: str


def digest(secret: str) -> str:
    """What is stored of a key. The secret has 128 random bits, so a plain hash suffices."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(
    store: Store,
    ids: Ids,
    *,
    name: str,
    workspace_id: WorkspaceId | None,
    scopes: frozenset[Scope],
    expires_at: datetime | None = None,
    by: str = "system",
) -> NewKey:
    """A new key. ``admin`` sees every workspace and therefore has none; every other key has exactly one.

    Raises InvalidRequest, NotFound (workspace), Unavailable.
    """
    admission.clean(name, what="name", limit=200, empty=False)
    if not scopes:
        raise InvalidRequest("a key needs a scope", hint="read, run, operate or admin")
    if (Scope.ADMIN in scopes) != (workspace_id is None):
        raise InvalidRequest("a key has a workspace, unless its scope is admin; then it sees all of them")
    if workspace_id is not None:
        workspace_id = store.workspace(workspace_id).id
    secret = PREFIX + ids.nonce()
    key = store.create_key(
        KeyId(ids.new("key")),
        digest(secret),
        name=name,
        workspace_id=workspace_id,
        scopes=scopes,
        expires_at=expires_at,
        by=by,
    )
    return NewKey(key, secret)


def create_admin(store: Store, ids: Ids, *, name: str = "admin") -> NewKey:
    """A key for everything: the first one, or one made beside the API with ``--direct``. Raises Unavailable."""
    return create(store, ids, name=name, workspace_id=None, scopes=frozenset({Scope.ADMIN}))


def known(store: Store, clock: Clock, secret: str) -> ApiKey:
    """The key that a secret opens. Raises Unauthorized, Unavailable."""
    if not secret or len(secret) > LONGEST or not secret.isascii():
        raise Unauthorized("the key is unknown")
    return known_by(store, clock, digest(secret))


def known_by(store: Store, clock: Clock, secret_digest: str) -> ApiKey:
    """The key whose secret has this digest. Raises Unauthorized, Unavailable."""
    key = store.key_by_digest(secret_digest)
    if key is None:
        raise Unauthorized("the key is unknown")
    return valid(clock, key)


def holding(store: Store, clock: Clock, secrets: Iterable[str]) -> set[str]:
    """Those of the keys that are neither revoked nor expired, of many. Raises Unavailable."""
    digests = {secret: digest(secret) for secret in secrets}
    found = store.keys_by_digest(set(digests.values()))
    return {secret for secret, each in digests.items() if each in found and _holds(clock, found[each])}


def _holds(clock: Clock, key: ApiKey) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > clock.now())


def valid(clock: Clock, key: ApiKey) -> ApiKey:
    """The key itself while it is neither revoked nor expired. Raises Unauthorized."""
    if key.revoked_at is not None:
        raise Unauthorized("the key was revoked")
    if key.expires_at is not None and key.expires_at <= clock.now():
        raise Unauthorized("the key has expired")
    return key


def revoke(store: Store, key_id: KeyId, *, by: str = "system") -> ApiKey:
    """End a key. Repeatable. Raises NotFound."""
    if len(key_id) > LONGEST:
        raise NotFound("no such key")
    return store.revoke_key(key_id, by=by)
