"""The subset of Dockerfiles that this repository uses, as typed steps.

FROM [AS], ARG, COPY [--from] [--chown], RUN (shell form), ENV, USER, WORKDIR, ENTRYPOINT and CMD (JSON form).
Anything else is refused with its line, never skipped: a file that builds here means the same to every other
builder.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


class BadDockerfile(ValueError):
    """A line that this builder does not understand."""


@dataclass(frozen=True)
class Copy:
    """COPY. `stage`: empty for the build context."""

    sources: tuple[str, ...]
    target: str
    stage: str = ""
    owner: str = ""


@dataclass(frozen=True)
class Run:
    """RUN with a shell, with the values of ARG in its environment."""

    script: str
    arguments: dict[str, str]


@dataclass(frozen=True)
class Set:
    """ENV, USER, WORKDIR, ENTRYPOINT, CMD: what the configuration holds. `words` of ENV are NAME=VALUE."""

    what: str
    words: tuple[str, ...]


Step = Copy | Run | Set


@dataclass
class Stage:
    """From one FROM to the next."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)


def parse(text: str, given: Mapping[str, str]) -> list[Stage]:
    """The stages, with `given` in place of ARG's defaults. Raises BadDockerfile."""
    stages: list[Stage] = []
    before: dict[str, str] = {}
    arguments: dict[str, str] = {}
    for number, line in _lines(text):
        word, _, rest = line.partition(" ")
        instruction, rest = word.upper(), rest.strip()
        if instruction == "ARG":
            name, _, default = rest.partition("=")
            value = given.get(name, before.get(name, default))
            (arguments if stages else before)[name] = value
        elif instruction == "FROM":
            words = _expand(rest, before, number).split()
            if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
                raise BadDockerfile(f"line {number}: FROM IMAGE [AS NAME]; found: {line}")
            stages.append(Stage(words[0], words[2] if len(words) == 3 else str(len(stages))))
            arguments = {}
        elif not stages:
            raise BadDockerfile(f"line {number}: {instruction} before the first FROM")
        else:
            stages[-1].steps.append(_step(instruction, rest, arguments, number))
    if not stages:
        raise BadDockerfile("no FROM")
    return stages


def _step(instruction: str, rest: str, arguments: dict[str, str], number: int) -> Step:
    match instruction:
        case "RUN":
            if rest.startswith(("[", "--")):
                raise BadDockerfile(
                    f"line {number}: RUN in shell form without options only; found: RUN {rest}"
                )
            return Run(rest, dict(arguments))
        case "COPY":
            words = shlex.split(_expand(rest, arguments, number))
            options = {
                name: value
                for name, _, value in (
                    word.removeprefix("--").partition("=") for word in words if word.startswith("--")
                )
            }
            paths = [word for word in words if not word.startswith("--")]
            if set(options) - {"from", "chown"} or len(paths) < 2:
                raise BadDockerfile(
                    f"line {number}: COPY [--from=STAGE] [--chown=UID:GID] SOURCE... TARGET; found: COPY "
                    f"{rest}"
                )
            return Copy(tuple(paths[:-1]), paths[-1], options.get("from", ""), options.get("chown", ""))
        case "ENTRYPOINT" | "CMD":
            try:
                words = json.loads(rest)
            except json.JSONDecodeError:
                raise BadDockerfile(
                    f"line {number}: {instruction} in JSON form only; found: {rest}"
                ) from None
            return Set(instruction, tuple(str(word) for word in words))
        case "ENV":
            words = shlex.split(_expand(rest, arguments, number))
            if not all("=" in word for word in words):
                raise BadDockerfile(f"line {number}: ENV NAME=VALUE...; found: ENV {rest}")
            return Set(instruction, tuple(words))
        case "USER" | "WORKDIR":
            return Set(instruction, (_expand(rest, arguments, number),))
        case _:
            raise BadDockerfile(f"line {number}: {instruction} is not among what this builder takes")


def _lines(text: str) -> list[tuple[int, str]]:
    """Logical lines with the number of their first physical one; comments and empty lines are gone."""
    seen: list[tuple[int, str]] = []
    parts: list[str] = []
    began = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        began = began if parts else number
        parts.append(line.strip().removesuffix("\\").strip())
        if not line.rstrip().endswith("\\"):
            seen.append((began, " ".join(part for part in parts if part)))
            parts = []
    return seen


def _expand(text: str, values: Mapping[str, str], number: int) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        if name not in values:
            raise BadDockerfile(f"line {number}: ${name} has no value: no ARG {name} in this stage")
        return values[name]

    return _VARIABLE.sub(value, text)
