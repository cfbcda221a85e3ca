"""A plot of a measurement as a picture of the docs: with a title, what it shows in words, for dark pages too.

`python tools/picture.py out/chain.svg docs/pictures/bench-chain.svg TITLE DESCRIPTION`.
"""

import re
import sys
from html import escape
from pathlib import Path

DARK = "@media (prefers-color-scheme: dark) { svg { filter: invert(1) hue-rotate(180deg); } }"


def picture(plot: str, title: str, description: str) -> str:
    """The SVG of a plot, told to those who do not see it. Raises ValueError if it is none."""
    head = re.search(r"<svg\b[^>]*>", plot)
    if head is None:
        raise ValueError("expected an SVG, found no element `svg`")
    rest = re.sub(r" *<metadata>.*?</metadata>\n?", "", plot[head.end() :], flags=re.DOTALL)
    told = f" <title>{escape(title)}</title>\n <desc>{escape(description)}</desc>\n <style>{DARK}</style>"
    return f"{head.group()}\n{told}{rest}"


def main(arguments: list[str]) -> int:
    """Reads one file and writes the other."""
    plot, to, title, description = arguments
    Path(to).write_text(picture(Path(plot).read_text(encoding="utf-8"), title, description), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
