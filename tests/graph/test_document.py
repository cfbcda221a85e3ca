"""YAML as people write it."""

import pytest

from hams_graph import InvalidGraph, document
from hams_graph.document import read_text


def values(text: str) -> object:
    return read_text(text, "ServiceGraph").root


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: on", "on"),
        ("a: yes", "yes"),
        ("a: true", True),
        ("a: 12:30", "12:30"),
        ("a: 2026-01-01", "2026-01-01"),
        ("a: 0o17", 15),
        ("a: 0x1f", 31),
        ("a: 010", 10),
        ("a: 1e3", 1000.0),
        ("a: .5", 0.5),
        ("a: 1_000", "1_000"),
        ("a: ~", None),
        ("a:", None),
        ("a: '3'", "3"),
        ("a: None", "None"),
        ("a: -1", -1),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, expected: object) -> None:
    assert values(text) == {"a": expected}


def test_anchors_aliases_and_merge_keys_work() -> None:
    assert values("a: &x {p: 1, q: 2}\nb: *x\nc: {<<: *x, q: 3}") == {
        "a": {"p": 1, "q": 2},
        "b": {"p": 1, "q": 2},
        "c": {"p": 1, "q": 3},
    }


def test_json_is_yaml() -> None:
    assert values('{"a": [1, "b", null, false]}') == {"a": [1, "b", None, False]}


def test_lines_are_those_of_the_file() -> None:
    document = read_text("a:\n  b:\n  - 1\n  - c: 2\n", "ServiceGraph")
    assert [
        document.line(path)
        for path in ((), ("a",), ("a", "b"), ("a", "b", 1), ("a", "b", 1, "c"), ("a", "b", 1, "absent"))
    ] == [
        1,
        1,
        2,
        4,
        4,
        4,
    ]


def test_the_graph_is_found_among_other_objects() -> None:
    assert values("kind: Secret\n---\nkind: ServiceGraph\n---\n") == {"kind": "ServiceGraph"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "document: is empty; expected one ServiceGraph"),
        ("---\n", "document: is empty; expected one ServiceGraph"),
        ("a: 1\na: 2", "a: is given twice; the first is on line 1 (line 2)"),
        ("a:\n  b: 1\n  c: 1\n  b: 2", "a.b: is given twice; the first is on line 2 (line 4)"),
        ("a: &x [*x]", "a[0]: contains itself through an alias (line 1)"),
        (
            "a: !!python/object:os.system {}",
            "a: the tag tag:yaml.org,2002:python/object:os.system is not known here (line 1)",
        ),
        ("a: !secret b", "a: the tag !secret is not known here (line 1)"),
        ("[1]: 2", "document: a key must be text (line 1)"),
        ("a: .nan", "a: .nan is not a number that JSON knows (line 1)"),
        ("a: .inf", "a: .inf is not a number that JSON knows (line 1)"),
        ("a: -.INF", "a: -.INF is not a number that JSON knows (line 1)"),
        ("a: {<<: 3}", "a: << takes a mapping, or a list of mappings (line 1)"),
        (
            "a: [1",
            "document: not YAML: while parsing a flow sequence expected ',' or ']', but got '<stream end>' "
            "(line 1)",
        ),
        (
            "a:\n\t- 1",
            "document: not YAML: while scanning for the next token found character '\\t' that cannot start "
            "any token (line 2)",
        ),
        (
            "kind: Pod\n---\nkind: Pod",
            "document: the file has 2 documents, 0 of them of kind ServiceGraph; expected exactly one",
        ),
        (
            "kind: ServiceGraph\n---\nkind: ServiceGraph",
            "document: the file has 2 documents, 2 of them of kind ServiceGraph; expected exactly one",
        ),
        (
            "a: \x07",
            "document: not YAML: unacceptable character #x0007: special characters are not allowed in "
            '"<unicode string>", position 3',
        ),
        ("a: " + "[" * 200 + "]" * 200, "a" + "[0]" * 64 + ": nested deeper than 64 levels (line 1)"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidGraph) as caught:
        read_text(text, "ServiceGraph")
    assert str(caught.value) == message


def test_a_file_that_unfolds_without_end_is_refused() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9))
    with pytest.raises(
        InvalidGraph, match=f"the document unfolds to more than {document.graph_file_values_max} values"
    ):
        read_text(f"l0: &l0 [1]\n{levels}", "ServiceGraph")


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="larger than 1024 KiB"):
        read_text("a: " + "x" * document.graph_file_bytes_max, "ServiceGraph")
