"""Which part of a machine a message is for, by its class."""

from collections.abc import Callable
from typing import TypeVar, cast

from hams_protocol.ids import InstanceId
from hams_protocol.messages import Message

Handler = Callable[[InstanceId, Message], None]
"""Takes the sender and the message."""

M = TypeVar("M")


class Handlers:
    """One machine's table. A message of a class that nobody has asked for is for nobody."""

    def __init__(self) -> None:
        self._by_class: dict[type, Handler] = {}

    def on(self, kind: type[M], handler: Callable[[InstanceId, M], None]) -> None:
        """Messages of this class, and of no subclass, go to `handler`."""
        self._by_class[kind] = cast("Handler", handler)

    def find(self, message: Message) -> Handler | None:
        """The part that takes it; None: no part of this machine."""
        return self._by_class.get(type(message))
