"""What a model author derives from and returns.

A model is `initialize` once, then `run` per batch, both always on one thread. State lives in the objects that
`initialize` returned and is written only inside `with update:`. Nothing here knows the protocol, the network
or Kubernetes.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from hams_sdk.batch import Batch


class Update(Protocol):
    """The boundary between compute stage and update stage; entered at most once per run."""

    def __enter__(self) -> None:
        """Wait until the previous version has been captured. Raises a private BaseException if this batch
        must not take effect."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End of the update stage."""


class Outputs:
    """Output tensors and, per unit, where they go.

    `routes[i]` for unit i: None (all successors but `request`) or a list of successor names, `reply` for the
    graph's outputs, `request` for feedback; [] filters the unit.
    """

    __slots__ = ("routes", "tensors")

    def __init__(
        self, tensors: Mapping[str, Any], routes: Sequence[Sequence[str] | None] | None = None
    ) -> None:
        self.tensors = tensors
        self.routes = routes


class Opaque:
    """State that is not tensors: `get()` returns all of it as bytes (on the capture thread, reading only),
    `set(data)` puts it back in place."""

    __slots__ = ("get", "set")

    def __init__(self, get: Callable[[], bytes], set: Callable[[bytes], object]) -> None:
        self.get = get
        self.set = set


class Constant:
    """State that never changes: see `constant`."""

    __slots__ = ("holder",)

    def __init__(self, holder: Any) -> None:
        self.holder = holder


def constant(holder: Any) -> Any:
    """Declare that `holder`, part of what `initialize` returns, never changes afterwards: weights, say.

    It is part of version 0 and of every whole copy, and captures do not compare it, but for one in
    `state.CONSTANT_AGAIN`: a difference ends the process, naming the leaf. What this saves is the
    comparison alone; what does not change is never copied or sent anyhow. A state below 16 KiB is copied
    whole, with a constant that changed.
    """
    return Constant(holder)


class Model:
    """Base class of models."""

    def initialize(self, config: dict[str, Any]) -> Mapping[str, Any] | None:
        """Load what is needed; return references to everything that is state.

        Values: torch tensors, numpy arrays, anything with `state_dict` and `load_state_dict`, `Opaque`. None:
        no state.
        """
        return None

    if TYPE_CHECKING:
        run: Callable[..., Mapping[str, Any] | Outputs | None]  # with or without `update`
    else:

        def run(self, batch: Batch, update: Update) -> Mapping[str, Any] | Outputs | None:
            """Compute the outputs of a batch: arrays or tensors (rows, *declared shape) of exactly the
            declared datatype.

            A model without `update` in its signature is right for stateless operators; on a stateful one its
            whole run is the update stage.
            """
            raise NotImplementedError(f"{type(self).__name__} does not define run(self, batch, update)")
