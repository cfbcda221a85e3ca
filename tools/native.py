"""Value classes in the form that mypyc makes fast: `@frozen class X` becomes a plain class with the methods
that `frozen` would have made.

mypyc compiles a class under a decorator that it does not know as an ordinary Python class; a plain one gets
slots in C. What is written here is what `dataclass(slots=True, unsafe_hash=True)` means: `__init__`,
`__eq__`, `__hash__`, `__repr__` by the fields in their order. The dataclass's own marks
(`__dataclass_fields__` and so on), which `replace` and the codec read, are added by `frozen.marked` at
import.
"""

import ast


def plain(source: str) -> str:
    """The source of a module, with its `@frozen` classes written out. `replace` of those is known to mypy as
    one of dataclasses only."""
    source = source.replace(
        "from dataclasses import replace\n", "from hams_protocol.frozen import replaced as replace\n"
    )
    module = ast.parse(source)
    body: list[ast.stmt] = []
    has_native = False
    for statement in module.body:
        body.append(statement)
        if isinstance(statement, ast.ClassDef) and any(
            isinstance(item, ast.Name) and item.id == "frozen" for item in statement.decorator_list
        ):
            has_native = True
            body.append(_write_out(statement))
        elif isinstance(statement, ast.ClassDef) and any(
            isinstance(item, ast.Name) and item.id == "NamedTuple" for item in statement.bases
        ):
            has_native = True
            body.append(
                _marked(
                    statement.name,
                    [item for item in statement.body if isinstance(item, ast.AnnAssign)],
                    "annotated",
                )
            )
    if not has_native:
        return source
    after = next(number for number, item in enumerate(body) if isinstance(item, ast.Import | ast.ImportFrom))
    module.body = [
        *body[:after],
        *ast.parse("from typing import Final\nfrom hams_protocol.frozen import annotated, marked").body,
        *body[after:],
    ]
    return ast.unparse(module)


def _write_out(cls: ast.ClassDef) -> ast.stmt:
    """Change the class in place; returns the statement that has to follow it."""
    fields = [item for item in cls.body if isinstance(item, ast.AnnAssign)]
    names = [item.target.id for item in fields if isinstance(item.target, ast.Name)]
    assert len(names) == len(fields), f"{cls.name}: a field that is not a name"
    arguments = ", ".join(
        f"{name}: {ast.unparse(item.annotation)}"
        + (f" = {ast.unparse(item.value)}" if item.value is not None else "")
        for name, item in zip(names, fields, strict=True)
    )
    same = " and ".join(f"self.{name} == other.{name}" for name in names) or "True"
    values = "".join(f"self.{name}, " for name in names)
    shown = ", ".join(f"{name}={{self.{name}!r}}" for name in names)
    methods = f"""
def __init__(self{", " if arguments else ""}{arguments}) -> None:
    {"; ".join(f"self.{name} = {name}" for name in names) or "pass"}

def __eq__(self, other: object) -> bool:
    return type(other) is {cls.name} and ({same})

def __hash__(self) -> int:
    return hash(({values}))

def __repr__(self) -> str:
    return f"{cls.name}({shown})"
"""
    statements = [item for item in cls.body if not isinstance(item, ast.AnnAssign)]
    if not statements or not isinstance(statements[0], ast.Expr):
        statements.insert(0, ast.Expr(ast.Constant("A value.")))
    matched = ast.parse(f"__match_args__: Final = ({''.join(f'{name!r}, ' for name in names)})").body[0]
    declared = [ast.AnnAssign(item.target, item.annotation, None, 1) for item in fields]
    cls.body = [statements[0], matched, *declared, *ast.parse(methods).body, *statements[1:]]
    cls.decorator_list = []
    return _marked(cls.name, fields, "marked")


def _marked(name: str, fields: list[ast.AnnAssign], by: str) -> ast.stmt:
    """The statement that tells what the fields of a class are, and their defaults: mypyc keeps none that
    could be looked at, and a codec fills in what a neighbouring version does not send.
    """
    listed = "".join(
        f"({ast.unparse(item.target)!r}, {ast.unparse(item.annotation)!r}"
        + (f", {ast.unparse(item.value)}), " if item.value is not None else "), ")
        for item in fields
    )
    return ast.parse(f"{by}({name}, ({listed}))").body[0]
