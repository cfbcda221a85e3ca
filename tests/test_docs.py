"""The documents say what is true: links lead somewhere, commands and fields exist, the reference is what the
typed model says."""

import ast
import importlib.util
import itertools
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from hams_graph import load, load_text
from hams_operator.cli.main import app
from hams_operator.plan.names import GraphRef
from hams_operator.plan.status import CHANGE_REFUSED, NAME_TAKEN, REJECTED, KnownGraph, status_of
from hams_protocol.wholeness import STATE_LOST

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "operator/hams_operator/templates").rglob("*.md"),
    ]
)
IDS = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`(hams [^`]+)`")
PLACEHOLDERS = {"FILE", "DIR", "NAME", "OPERATOR", "URL", "N", "S", "ID"}
KINDS = ("ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget")
"""Words of the control plane's sources that are no reasons."""
NOT_YET: set[str] = set()
"""Named in the documents as not there yet."""

BESIDE_THE_SOURCES = ("charts", "e2e", "images", "model-sdk", "sidecar")
WRITTEN = sorted([*PAGES, *(page for folder in BESIDE_THE_SOURCES for page in (ROOT / folder).rglob("*.md"))])
GENERATED = {"docs/faults.md", "docs/mutants.md"}
"""Written by tools, from the code."""
COLUMNS_MAX = 120
WORDS_PER_SENTENCE_MAX = 18
WORDS_TOLD_AGAIN = {
    "docs/design/protocol.md": {"orphan", "durable", "unknown"},
    "docs/how-it-works.md": {"version", "end", "durable"},
}
"""Words of the glossary that another page tells, too: exactly, for the rules; and simply, to begin with."""
ITEM = re.compile(r"([-*+]|\d+[.)])\s+")


def prose(text: str) -> str:
    return FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs and items of lists of a page. Code, tables, headings, pictures are none."""
    lines: list[str] = []
    for line in [*map(str.strip, prose(text).splitlines()), ""]:
        item = ITEM.match(line)
        if item or not line or line[0] in "|#<" or line.startswith("!["):
            if re.search(r"\w", LINK.sub("", " ".join(lines))):
                yield " ".join(lines)
            lines = [line[item.end() :]] if item else []
        else:
            lines.append(line)


def sentences(text: str) -> list[str]:
    """The sentences of a page. A piece of code counts as one word, a link as its text."""
    parts: list[str] = []
    for paragraph in paragraphs(text):
        words = re.sub(r"(`+).+?\1", "Code", paragraph)
        words = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", words)
        words = words.replace("*", "").replace("et al.", "et al")
        parts += re.split(r"(?<=[.!?])[\")]*\s+(?=[\"(]*[A-Z0-9])", words)
    return [sentence for sentence in parts if re.search(r"\w", sentence)]


def words_per_sentence(text: str) -> float:
    """The mean over all sentences of a page."""
    counts = [len(re.findall(r"\S*\w\S*", sentence)) for sentence in sentences(text)]
    return sum(counts) / len(counts) if counts else 0.0


def test_sentences_are_told_apart() -> None:
    text = """# A heading. It has no sentence

One sentence (Zhao et al., 2020) is here. Another one, with `some code. In it`, is on
two lines! A [link. In brackets](of-a-page.md) counts
as its text.

| a table. With | sentences. |
| --- | --- |

- first item
- [only a link](page.md)

```sh
code. Is left out
```
"""
    assert sentences(text) == [
        "One sentence (Zhao et al, 2020) is here.",
        "Another one, with Code, is on two lines!",
        "A link.",
        "In brackets counts as its text.",
        "first item",
    ]
    assert words_per_sentence("One two three. Four - five. `six seven`") == 2.0


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short_on_average(page: Path) -> None:
    mean = words_per_sentence(page.read_text(encoding="utf-8"))
    assert mean < WORDS_PER_SENTENCE_MAX, f"{page.name}: {mean:.1f} words per sentence"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_can_be_read_beside_a_diff(page: Path) -> None:
    if str(page.relative_to(ROOT)) not in GENERATED:
        wide = [
            line
            for line in prose(page.read_text(encoding="utf-8")).splitlines()
            if len(line) > COLUMNS_MAX and not line.lstrip().startswith(("|", "#"))
        ]
        assert not wide, f"{page.name}: wider than {COLUMNS_MAX} columns: {wide}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name}: no {target}"
        if anchor:
            assert anchor in anchors(there), (
                f"{page.name}: {there.name} has no heading for #{anchor}; it has {sorted(anchors(there))}"
            )


def commands(page: Path) -> Iterator[list[str]]:
    """Every `hams ...` of a page, in shell fences and in the running text, as words."""
    text = page.read_text(encoding="utf-8")
    lines = [
        line
        for language, body in FENCE.findall(text)
        if language in ("sh", "console")
        for line in body.replace("\\\n", " ").splitlines()
    ]
    for line in lines:
        for part in re.split(r"&&|\||;", line.removeprefix("$ ")):
            match = re.match(r"\s*hams (.*)", part)
            if match:
                yield shlex.split(match[1], comments=True)
    for inline in INLINE.findall(prose(text)):
        yield shlex.split(inline.removeprefix("hams "))


@cache
def options_of(*words: str) -> frozenset[str]:
    """The options that a command names in its own --help. Fails if there is no such command."""
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0, f"there is no `hams {' '.join(words)}`: {shown.output}"
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][\w-]*", shown.output)) | {"--help"}


def command_of(words: list[str]) -> list[str]:
    """The words that name the command itself."""
    if words[0] in ("history", "chaos", "image"):
        return words[:2]
    named = (
        words[0] == "bench"
        and len(words) > 1
        and not words[1].startswith("-")
        and words[1] not in PLACEHOLDERS
    )
    return words[:2] if named else words[:1]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_exist_with_their_options(page: Path) -> None:
    for words in commands(page):
        if not words or words[0] in NOT_YET or words[0].startswith("-"):
            continue
        if not re.fullmatch(r"[a-z]+", words[0]):
            continue
        known = options_of(*command_of(words))
        for word in words[1:]:
            if word.startswith("-") and not re.fullmatch(r"-\d+", word):
                assert word.partition("=")[0] in known, (
                    f"{page.name}: hams {' '.join(words)}: no option {word}; there are {sorted(known)}"
                )


def test_the_commands_of_the_pages_are_found_at_all() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 40


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "configuration_reference", ROOT / "tools" / "configuration.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_configuration_reference_is_what_the_typed_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = reference()
    text = tool.PAGE.read_text(encoding="utf-8")
    assert tool.page(text) == text, "run: .venv/bin/python tools/configuration.py"
    assert tool.main(["--check"]) == 0
    monkeypatch.setattr(tool.rs.Managers, "__doc__", "Something else.")
    assert tool.page(text) != text, "a change of the model is noticed"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_fields_named_with_their_section_exist(page: Path) -> None:
    """`frontend.maxInFlight`, `stateful.window` and the like."""
    sections: dict[str, set[str]] = {}
    for path in reference().paths():
        parts = path.replace("[]", "").split(".")
        for section, field in itertools.pairwise(parts):
            sections.setdefault(section, set()).add(field)
    for section, field in re.findall(
        r"`(frontend|managers|recovery|stateful|batch|standby|model|feedback|checkpoint)\.([a-z]\w*)",
        prose(page.read_text()),
    ):
        # `batch.units` there is the SDK's
        if page.name not in ("models.md", "api.md") or section not in ("batch", "model"):
            assert field in sections[section] | {"py"}, (
                f"{page.name}: no field {section}.{field}; there are {sorted(sections[section])}"
            )


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_whole_graphs_in_the_pages_are_valid(page: Path) -> None:
    for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "yaml" and "operators:" in body and body.startswith("apiVersion"):
            load_text(body)


def test_troubleshooting_names_every_reason_and_event_that_there_is() -> None:
    """Each from the code that emits it."""
    control = ROOT / "operator" / "hams_operator"
    files = [control / name for name in ("plan/status.py", "plan/news.py", "controller/reconcile.py")]
    files.append(ROOT / "sidecar" / "hams_protocol" / "wholeness.py")
    sources = "\n".join(file.read_text() for file in files)
    words = set(re.findall(r'"([A-Z][a-z]+(?:[A-Z][a-z]+)*)"', sources))
    # statuses, types, kinds
    other = {
        "True",
        "False",
        "Unknown",
        "Normal",
        "Warning",
        "Progressing",
        "Event",
        "Deployment",
        "Pod",
        "Z",
    }
    reasons = words - other - set(KINDS)
    assert {
        "NoPrimary",
        "StateLost",
        "Promoted",
        "ReProtected",
        "Unprotected",
        "NameTaken",
        "Ending",
    } <= reasons
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert not [word for word in sorted(reasons) if not re.search(rf"\b{word}\b", text)]


def graph_status() -> dict[str, Any]:
    """What the controller writes into the status of a graph of which nothing is up yet."""
    file = ROOT / "examples" / "digits" / "graph.yaml"
    return status_of(load(file), GraphRef("digits", "default"), KnownGraph(), {}, 1, "2026-01-01T00:00:00Z")


def reasons_in(*files: str) -> set[str]:
    """The words in these sources of the control plane or the core that are a constant of their own."""
    return {
        node.value
        for file in files
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_the_health_check_for_argo_cd_reads_what_the_controller_writes() -> None:
    """Nothing here runs Lua: the names in its text are looked up."""
    page = (ROOT / "docs" / "gitops.md").read_text(encoding="utf-8")
    (body,) = [body for _, body in FENCE.findall(page) if "resource.customizations.health" in body]
    ((key, lua),) = yaml.safe_load(body)["data"].items()
    crd = next(yaml.safe_load_all((ROOT / "crds" / "hams.dev_servicegraphs.yaml").read_text()))["spec"]
    assert key == f"resource.customizations.health.{crd['group']}_{crd['names']['kind']}"

    status = graph_status()
    conditions = {item["type"]: item for item in status["conditions"]}
    types = re.findall(r'found\["(\w+)"\]', lua)
    assert set(types) == {"Stalled", "Reconciling", "Ready"} <= set(conditions)
    (names,) = re.findall(r"local ([\w, ]+) = found", lua)
    assert names.split(", ") == [name.lower() for name in types], "each under its own name"
    members = re.findall(rf"\b(?:condition|{'|'.join(map(str.lower, types))})\.(\w+)", lua)
    assert {"type", "status", "message"} == set(members) <= set(conditions["Ready"])
    assert {"conditions", "observedGeneration", "message"} == set(re.findall(r"obj\.status\.(\w+)", lua))
    assert {"conditions", "observedGeneration", "message"} <= set(status)
    assert set(re.findall(r'\.status == "(\w+)"', lua)) == {"True"}
    assert {item["status"] for item in conditions.values()} <= {"True", "False", "Unknown"}
    assert conditions["Reconciling"]["status"] == "True", "nothing is up yet"
    assert set(re.findall(r'status = "(\w+)"', lua)) == {"Progressing", "Degraded", "Healthy"}, "Argo CD's"


def test_the_conditions_and_reasons_that_the_page_on_gitops_names_are_those_that_there_are() -> None:
    page = (ROOT / "docs" / "gitops.md").read_text(encoding="utf-8")
    types = {item["type"] for item in graph_status()["conditions"]}
    shown = set(re.findall(r"`(\w+)=(?:True|False)`|--for=condition=(\w+)", page))
    assert {"Reconciling", "Stalled", "Ready"} == {one or other for one, other in shown} <= types
    for name in re.findall(r"--for=condition=\w+=(\w+)", page):
        assert name in ("True", "False", "Unknown")

    (row,) = re.findall(r"^\| cannot go on without a person: ([\w, ]+) \| `Stalled=True`", page, re.MULTILINE)
    control = "operator/hams_operator/"
    sources = (
        f"{control}plan/status.py",
        f"{control}controller/planning.py",
        "sidecar/hams_protocol/wholeness.py",
    )
    assert len(row.split(", ")) >= 6
    assert set(row.split(", ")) <= reasons_in(*sources)
    assert {CHANGE_REFUSED, REJECTED, NAME_TAKEN, STATE_LOST} <= set(row.split(", "))


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.name
)
def test_pictures_are_used_and_say_what_they_show(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert "<title" in text
    assert "<desc" in text
    assert "prefers-color-scheme: dark" in text
    assert any(picture.name in page.read_text(encoding="utf-8") for page in PAGES), (
        f"no page shows {picture.name}"
    )


def defined(text: str) -> list[str]:
    """The words that a page defines: the first column of each table of words or of meanings, and items of
    lists that begin with a bold word. What stands as code is a name, and no word."""
    head = r"^\| (?:words? \| .*|.* \| meanings? )\|\n\|[-| ]+\|\n"
    tables = re.findall(head + r"((?:\|.*\n?)+)", text, re.MULTILINE)
    cells = [row.split("|")[1] for table in tables for row in table.splitlines()]
    items = re.findall(r"^[-*] (?:an? |the )?\*\*([^*]+)\*\*", text, re.MULTILINE | re.IGNORECASE)
    words = (word.strip(" .:").lower() for text in (*cells, *items) for word in text.split(","))
    return [word for word in words if "`" not in word]


def test_definitions_are_found() -> None:
    text = """| word | meaning |
| --- | --- |
| end | the last |
| one, other | two |
| `name` | of code |

| kind | meaning |
| --- | --- |
| wall | of stone |

| page | says |
| --- | --- |
| start | how |

- **orphan** if it ended
- A **gap** is a wait.
- this is **bold**
"""
    assert defined(text) == ["end", "one", "other", "wall", "orphan", "gap"]


def test_words_are_defined_in_one_place() -> None:
    """The glossary, each once. Decision records say why a word is as it is."""
    glossary = ROOT / "docs" / "glossary.md"
    words = defined(prose(glossary.read_text(encoding="utf-8")))
    assert len(words) > 80
    assert not [word for word in words if words.count(word) > 1]
    again = {
        str(page.relative_to(ROOT)): set(words) & set(defined(prose(page.read_text(encoding="utf-8"))))
        for page in WRITTEN
        if page != glossary and page.parent.name != "adr"
    }
    assert {page: told for page, told in again.items() if told} == WORDS_TOLD_AGAIN


def test_the_code_that_the_reading_guide_names_is_there() -> None:
    text = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "sidecar").rglob("*.py")}
    methods = re.findall(r"`([A-Z]\w+)\.(\w+)`", text)
    assert len(methods) > 10
    for owner, method in methods:
        assert any(
            re.search(
                rf"^class {owner}\b(?:(?!^class ).)*?^    (?:async )?def {method}\(", source, re.M | re.S
            )
            for source in sources.values()
        ), f"no {owner}.{method}"
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert any(str(path).endswith(f"/{name}") for path in sources), f"no {name}"
