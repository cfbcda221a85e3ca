"""What is wrong with a graph file, said so that its author can mend it.

A `Problem` names the place (`spec.operators[1].inputs[0]`, and the line where there is one), what was found
and what was expected. Validation collects all of them and raises once: nobody mends a file one error at a
time.
"""

import difflib
import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

guess_chars_max = 64
"""A longer word is no slip of a known one: comparing two words costs the product of their lengths."""

guess_words_max = 64
"""Known words that a misspelt one is compared with."""

guess_compared_max = 4
"""Of them, the nearest by their letters alone that are compared letter by letter."""

path_chars_max = 256
"""Length of a place in a message."""


Path = tuple[str | int, ...]
"""Where in the document: keys and list positions from the top."""


def spell(path: Path) -> str:
    """`("spec", "operators", 1, "inputs")` -> `spec.operators[1].inputs`; the top of the document is
    `document`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        if len(text) > path_chars_max:
            return text[:path_chars_max] + "..."
    return text or "document"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend. `line` counts from 1; 0 if the document did not come from a file."""

    path: str
    message: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" (line {self.line})" if self.line else "")


class InvalidGraph(ValueError):
    """The client's error: the document is not a graph that can run. `problems` has all that was found, in
    document order; never empty."""

    retryable = False

    def __init__(self, problems: Sequence[Problem], source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__("\n".join(str(problem) for problem in self.problems))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "features"?` if exactly one known word is near, else ``."""
    guess = nearest(word, known)
    return f'; did you mean "{guess}"?' if guess else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is most likely a slip of, regardless of case; None if nothing is near.

    Its cost is bounded whatever the words are: `ratio` takes the product of two lengths, so only the few with
    the most letters in common get there.
    """
    if len(word) > guess_chars_max:
        return None
    by_fold = {
        name.casefold(): name
        for name in itertools.islice(known, guess_words_max)
        if len(name) <= guess_chars_max
    }
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(word.casefold())
    alike = []
    for name in by_fold:
        matcher.set_seq1(name)
        if matcher.real_quick_ratio() >= _NEAR and (common := matcher.quick_ratio()) >= _NEAR:
            alike.append((common, name))
    best, guess = _NEAR, None
    for _, name in heapq.nlargest(guess_compared_max, alike):
        matcher.set_seq1(name)
        if (ratio := matcher.ratio()) > best or (guess is None and ratio == best):
            best, guess = ratio, name
    return None if guess is None else by_fold[guess]


_NEAR = 0.7
"""From here on, of 1 for equal words, two words are near."""


def listed(words: Iterable[str], last: str = "or") -> str:
    """`"a"`, `"a" or "b"`, `"a", "b" or "c"`; at most sixteen, then how many more."""
    quoted = [f'"{word}"' for word in words]
    if len(quoted) > 16:
        return f"{', '.join(quoted[:16])} and {len(quoted) - 16} more"
    return (
        quoted[0]
        if len(quoted) == 1
        else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
        if quoted
        else "none"
    )


def shown(value: object) -> str:
    """A found value in a message: its kind and, if short, itself."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= 60 else f"{value[:57]}..."
        return '"' + text.replace("\n", "\\n") + '"'
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, list):
        return "a list"
    return "a mapping"
