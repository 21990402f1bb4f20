"""The epoch key: which incarnation of the broker's data the deployment believes in."""

from __future__ import annotations

from datetime import timedelta

from oah.adapters.redis.link import Call, Link
from oah.core.model.epoch import SCHEMA, EpochState, EpochView
from oah.core.model.ids import EpochId
from oah.errors import EpochMismatch


class RedisEpochs:
    """The ``Epochs`` part of the broker, and the check of a server that has changed."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def view(self) -> EpochView:
        """What the key says and which server this is, in one round trip."""
        if self._link.dial.in_process:
            found, server = self._link.run(None, [Call("epoch_view")])[0], None
        else:
            found, server = self._view_of_server()
        _, epoch, state, run_id, schema, opened_at, now = found
        states = {member.value: member for member in EpochState}
        return EpochView(
            id=EpochId(epoch) if epoch else None,
            state=states.get(state),
            run_id=run_id or None,
            server_run_id=server,
            schema=int(schema) if schema.isdigit() else None,
            open_for=timedelta(milliseconds=int(now) - int(opened_at)) if opened_at.isdigit() else None,
        )

    def mint(self, new: EpochId, *, seen: EpochId | None) -> bool:
        """Write a new epoch in state ``rebuilding`` over the one that was seen."""
        server = None if self._link.dial.in_process else self._server()
        answer = self._link.run(None, [Call("epoch_mint", [new, seen, server, SCHEMA])])[0]
        return answer[1] == "1"

    def open(self, epoch: EpochId) -> bool:
        """``rebuilding`` → ``open``, only under this id."""
        return self._link.run(None, [Call("epoch_open", [epoch])])[0][1] == "1"

    def verify(self) -> None:
        """Compare the server with the epoch when the link has seen another one. Raises EpochMismatch."""
        if not self._link.suspect:
            return
        self._link.suspect = False  # before looking: a connection made meanwhile may set it again
        try:
            view = self.view()
        except BaseException:
            self._link.suspect = True
            raise
        if view.id is not None and None not in (view.run_id, view.server_run_id) and view.run_id != view.server_run_id:
            self._link.suspect = True
            raise EpochMismatch("this is not the Redis server that the epoch was minted on")

    def _view_of_server(self) -> tuple[list[str], str | None]:
        found = self._link.run(None, [Call("epoch_view")])[0]
        return found, self._server()

    def _server(self) -> str | None:
        for section in ("server", "replication"):
            found = self._link.server_run_id(self._link.exchange([["INFO", section]])[0])
            if found:
                return found
        return None
