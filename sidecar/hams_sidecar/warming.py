"""An instance without state registers once its model is loaded: with a role, and no model yet, it would only
keep requests waiting.

Until then a key of its own under a lease says that it lives, for its supervisor.
"""

import asyncio
import contextlib
import logging

from hams_protocol.events import ModelDied, ModelReady
from hams_protocol.ids import InstanceId
from hams_sidecar import limits
from hams_sidecar.model.link import ModelEvent
from hams_wire import limits as wire_limits
from hams_wire import records
from hams_wire.coordination.port import Coordination
from hams_wire.coordination.registration import Registration
from hams_wire.errors import CoordinationError, NoSpace

log = logging.getLogger("hams.proxy")


class Warming:
    """The time before one instance registers. `heard` is told of what its model does."""

    def __init__(
        self, coordination: Coordination, graph_uid: str, operator: str, instance: InstanceId
    ) -> None:
        self._coordination = coordination
        self._uid = graph_uid
        self._operator = operator
        self._instance = instance
        self._loaded = asyncio.Event()
        self._registration: Registration | None = None

    def on_event(self, event: ModelEvent) -> None:
        """Whether there is a model that has loaded."""
        if isinstance(event, ModelReady):
            self._loaded.set()
        elif isinstance(event, ModelDied):
            self._loaded.clear()

    async def until_loaded(self) -> None:
        """Wait until the model has loaded and etcd answers: to end because it does not would take the model
        along. Raises CoordinationError."""
        key = records.warming_key(self._uid, self._instance)
        while True:
            try:
                if self._registration is None:
                    self._registration = await self._coordination.register(
                        key, self._operator.encode(), wire_limits.member_lease_s
                    )
                await self._loaded.wait()
                await self._coordination.get(records.topology_key(self._uid))
                if self._loaded.is_set():  # it may have died meanwhile
                    return
            except CoordinationError as error:
                if not (error.retryable or isinstance(error, NoSpace)):
                    raise
                log.warning("the model waits for etcd: %s", error)
                await asyncio.sleep(limits.return_pause_s)

    async def over(self) -> None:
        """End the key of a warming instance: it is registered, or ends."""
        registration, self._registration = self._registration, None
        if registration is not None:
            with contextlib.suppress(CoordinationError):  # it expires by itself
                await registration.revoke()
