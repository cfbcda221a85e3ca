"""What can go wrong in a model process, by who is to blame.

HamsModelError
  ModelFault      the model's: wrong outputs, a second `with update:`; the batch is undone, its message
  becomes the units' error
    NotFinite     of it: a NaN or infinity in an output declared `finite`
    NoSuchInput   of it: an input that is not declared
  StateFault      the model's: state that cannot be captured or does not fit the image to load
  ContractBroken  the proxy's (or whoever speaks on its socket): a frame against proto/model.md; the process
  ends UsageError      the operator's: bad entrypoint, bad options, no proxy; the process ends with status 2
"""

import traceback
from pathlib import Path

from hams_sdk.limits import MESSAGE_CHARS_MAX

OWN = Path(__file__).resolve().parent


class HamsModelError(Exception):
    """Base of all errors of the SDK."""


class ModelFault(HamsModelError):
    """The model broke its side of the contract in a run."""


class NotFinite(ModelFault):
    """A NaN or infinity in an output declared `finite`."""


class NoSuchInput(ModelFault, KeyError):
    """The model asked its batch for an input that its operator does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


class StateFault(HamsModelError):
    """State that cannot be captured, or an image that does not fit the state."""


class ContractBroken(HamsModelError):
    """The other end of the socket does not speak the model contract."""


class UsageError(HamsModelError):
    """The process was started in a way that cannot work."""


class Abandoned(BaseException):
    """Raised by `with update:` when the batch must not take effect. No `Exception`, so that model code does
    not swallow it by accident."""


def place_of(error: BaseException) -> str:
    """Where in the author's code it was raised, as `models.py:12`; empty if it was nowhere in that."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).resolve().parent != OWN and "site-packages" not in frame.filename:
            place = f"{Path(frame.filename).name}:{frame.lineno}"
    return place


def describe(error: BaseException) -> str:
    """One bounded line for users: what the model said, no stack trace (that goes to the log)."""
    text = str(error) if isinstance(error, HamsModelError) else f"{type(error).__name__}: {error}"
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 3] + "..."
