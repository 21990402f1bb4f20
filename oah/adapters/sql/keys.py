"""Workspaces and the keys that open them. Of a key only the digest of its secret is known here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select, update

from oah.adapters.sql.aggregate import Aggregate, picked
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.fleet_tables import workspace_rates
from oah.adapters.sql.rows import KEY_COLUMNS, WORKSPACE_COLUMNS, key_of, workspace_of
from oah.adapters.sql.tables import api_keys, workspaces
from oah.adapters.sql.text import require_sound
from oah.core.model.ids import KeyId, WorkspaceId
from oah.core.model.run import RecoveryStrategy
from oah.core.model.workspace import ApiKey, Scope, Workspace
from oah.errors import Conflict, InvalidRequest, NotFound

WORKSPACE_CHANGES = frozenset(
    {
        "name",
        "weight",
        "max_active_runs",
        "max_queued_runs",
        "recovery_strategy",
        "recovery_max_attempts",
        "answers",
        "runs_per_minute",
        "runs_burst",
        "worktree",
    }
)


class Keys(Aggregate):
    """Workspaces and API keys."""

    def create_workspace(
        self,
        workspace_id: WorkspaceId,
        name: str,
        *,
        weight: int,
        max_active_runs: int | None,
        max_queued_runs: int | None,
        runs_per_minute: int | None = None,
        runs_burst: int | None = None,
        recovery_strategy: RecoveryStrategy | None = None,
        recovery_max_attempts: int | None = None,
        by: str = "system",
    ) -> Workspace:
        """Raises Conflict when the id or the name is taken."""
        require_sound(id=workspace_id, name=name)
        with self._database.write() as connection:
            taken = select(workspaces.c.id).where(
                or_(workspaces.c.id.in_([workspace_id, name]), workspaces.c.name.in_([workspace_id, name]))
            )
            if connection.execute(taken).first() is not None:
                raise Conflict(f"a workspace '{name}' exists")
            connection.execute(
                insert(workspaces).values(
                    id=workspace_id,
                    name=name,
                    weight=weight,
                    max_active_runs=max_active_runs,
                    max_queued_runs=max_queued_runs,
                    runs_per_minute=runs_per_minute,
                    runs_burst=runs_burst,
                    recovery_strategy=recovery_strategy,
                    recovery_max_attempts=recovery_max_attempts,
                    created_at=now(),
                )
            )
            record(
                connection, [entry(by, "workspace.created", workspace_id, {"workspace_id": workspace_id, "name": name})]
            )
            return _workspace(connection, workspace_id)

    def workspaces(self) -> list[Workspace]:
        """All, by name."""
        with self._database.read() as connection:
            rows = connection.execute(select(*picked(workspaces, WORKSPACE_COLUMNS)).order_by(workspaces.c.name))
            return [workspace_of(row) for row in rows]

    def workspace(self, id_or_name: str) -> Workspace:
        """Raises NotFound."""
        with self._database.read() as connection:
            return _workspace(connection, id_or_name)

    def update_workspace(self, id_or_name: str, changes: Mapping[str, Any], *, by: str = "system") -> Workspace:
        """Change what stands in ``WORKSPACE_CHANGES``. Raises NotFound, Conflict, InvalidRequest."""
        if unknown := set(changes) - WORKSPACE_CHANGES:
            raise InvalidRequest(f"a workspace has no {', '.join(sorted(unknown))} to change")
        with self._database.write() as connection:
            found = _workspace(connection, id_or_name)
            name = changes.get("name", found.name)
            require_sound(name=name, by=by)
            taken = select(workspaces.c.id).where(
                or_(workspaces.c.name == name, workspaces.c.id == name), workspaces.c.id != found.id
            )
            if connection.execute(taken).first() is not None:
                raise Conflict(f"a workspace '{name}' exists")
            if changes:
                connection.execute(update(workspaces).where(workspaces.c.id == found.id).values(**changes))
                record(connection, [entry(by, "workspace.changed", found.id, {"workspace_id": found.id, **changes})])
            rate = (changes.get(name, getattr(found, name)) for name in ("runs_per_minute", "runs_burst"))
            if tuple(rate) != (found.runs_per_minute, found.runs_burst):  # what was counted at the old one is void
                connection.execute(delete(workspace_rates).where(workspace_rates.c.workspace_id == found.id))
            return _workspace(connection, found.id)

    def create_key(
        self,
        key_id: KeyId,
        digest: str,
        *,
        name: str,
        workspace_id: WorkspaceId | None,
        scopes: frozenset[Scope],
        expires_at: datetime | None,
        by: str = "system",
    ) -> ApiKey:
        """Store the sha256 digest of a secret. Raises Conflict when it is stored already, NotFound (workspace)."""
        require_sound(name=name, by=by)
        with self._database.write() as connection:
            if workspace_id is not None:
                workspace_id = _workspace(connection, workspace_id).id
            taken = select(api_keys.c.id).where(or_(api_keys.c.digest == digest, api_keys.c.id == key_id))
            if connection.execute(taken).first() is not None:
                raise Conflict("this key exists")
            connection.execute(
                insert(api_keys).values(
                    id=key_id,
                    digest=digest,
                    name=name,
                    workspace_id=workspace_id,
                    scopes=sorted(scope.value for scope in scopes),
                    created_at=now(),
                    expires_at=expires_at,
                )
            )
            more = {"name": name, "scopes": sorted(scope.value for scope in scopes), "workspace_id": workspace_id}
            record(connection, [entry(by, "key.created", key_id, more)])
            return _key(connection, key_id)

    def key_by_digest(self, digest: str) -> ApiKey | None:
        """The key with this digest, also an expired or revoked one."""
        return self.keys_by_digest([digest]).get(digest)

    def keys_by_digest(self, digests: Collection[str]) -> Mapping[str, ApiKey]:
        """By the unique index."""
        if not digests:
            return {}
        statement = select(api_keys.c.digest, *picked(api_keys, KEY_COLUMNS))
        with self._database.read() as connection:
            rows = connection.execute(statement.where(api_keys.c.digest.in_(digests)))
            return {row[0]: key_of(row[1:]) for row in rows}

    def keys(self, workspace_id: WorkspaceId | None) -> list[ApiKey]:
        """All, or those of a workspace, oldest first."""
        statement = select(*picked(api_keys, KEY_COLUMNS)).order_by(api_keys.c.created_at, api_keys.c.id)
        if workspace_id is not None:
            statement = statement.where(api_keys.c.workspace_id == workspace_id)
        with self._database.read() as connection:
            return [key_of(row) for row in connection.execute(statement)]

    def revoke_key(self, key_id: KeyId, *, by: str = "system") -> ApiKey:
        """Revoked keys stay listed; the first revocation counts. Raises NotFound."""
        with self._database.write() as connection:
            statement = update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
            ended = connection.execute(statement.values(revoked_at=now())).rowcount
            key = _key(connection, key_id)
            if ended:
                more = {"name": key.name, "workspace_id": key.workspace_id}
                record(connection, [entry(by, "key.revoked", key_id, more)])
            return key


def _workspace(connection: Connection, id_or_name: str) -> Workspace:
    statement = select(*picked(workspaces, WORKSPACE_COLUMNS)).where(
        or_(workspaces.c.id == id_or_name, workspaces.c.name == id_or_name)
    )
    row = connection.execute(statement).first()
    if row is None:
        raise NotFound(f"no workspace '{id_or_name}'")
    return workspace_of(row)


def _key(connection: Connection, key_id: KeyId) -> ApiKey:
    row = connection.execute(select(*picked(api_keys, KEY_COLUMNS)).where(api_keys.c.id == key_id)).first()
    if row is None:
        raise NotFound(f"no key {key_id}")
    return key_of(row)
