"""What can go wrong in a model process, by who is to blame.

HamsModelError
  ModelFault      the model's: wrong outputs, a second `with update:`; the batch is undone, its message
  becomes the units' error
    NotFinite     of it: a NaN or infinity in an output declared `finite`
    NoSuchInput   of it: an input that is not declared
  StateFault      the model's: state that cannot be captured or does not fit the image to load
  ContractBroken  the proxy's (or whoever speaks on its socket): a frame against proto/model.md; the process
  ends
  UsageError      the operator's: bad entrypoint, bad options, no proxy; the process ends with status 2
    BadModel      the author's: a class whose `run` or `initialize` cannot be called as it must be
"""

import inspect
import traceback
from pathlib import Path
from typing import Any

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


class BadModel(UsageError):
    """A class that cannot serve as a model: `run` or `initialize` is missing, or takes something else."""


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


def place_of_definition(function: Any) -> str:
    """Where a function or a class of the author is written, as `models.py:12`; empty if that is not known."""
    try:
        function = inspect.unwrap(function)
        file = inspect.getsourcefile(function)
        code = getattr(function, "__code__", None)
        line = inspect.getsourcelines(function)[1] if code is None else code.co_firstlineno
    except (OSError, TypeError, ValueError):
        return ""
    return f"{Path(file).name}:{line}" if file is not None else ""


def at_place(place: str) -> str:
    """A place as the end of a sentence; empty if it is not known."""
    return f" ({place})" if place else ""


def describe(error: BaseException) -> str:
    """One bounded line for users: what the model said, no stack trace (that goes to the log)."""
    text = str(error) if isinstance(error, HamsModelError) else f"{type(error).__name__}: {error}"
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 3] + "..."
