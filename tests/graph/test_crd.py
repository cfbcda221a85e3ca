"""crds/ and the typed model say the same, field by field. The schema is what Kubernetes enforces, the model
what the program reads."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hams_graph import fields, resource
from hams_graph.fields import (
    Duration,
    Flag,
    Given,
    Json,
    Many,
    OneOf,
    Pairs,
    Part,
    Quantity,
    Text,
    Whole,
    given_fields,
)

CRD = yaml.safe_load(
    (Path(__file__).resolve().parents[2] / "crds" / "hams.dev_servicegraphs.yaml").read_text()
)
VERSION = CRD["spec"]["versions"][0]
SPEC = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]
STATUS = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]

DURATION = r"^0$|^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"

Schema = dict[str, Any]


def expected(rule: object) -> Schema:
    """The schema of a value that `rule` reads, descriptions, defaults and CEL rules aside."""
    match rule:
        case Whole():
            return {"type": "integer", "format": "int32", "minimum": rule.least, "maximum": rule.most}
        case Duration(least_s=0.0):
            return {"x-kubernetes-int-or-string": True, "pattern": DURATION, "minimum": 0, "maximum": 0}
        case Duration():
            return {"type": "string", "pattern": DURATION}
        case Quantity():
            return {"x-kubernetes-int-or-string": True, "pattern": QUANTITY}
        case Flag():
            return {"type": "boolean"}
        case Text():
            schema: Schema = {"type": "string", "maxLength": rule.most}
            if rule.least:
                schema["minLength"] = rule.least
            if not rule.pattern.startswith(r"[\s\S]"):
                schema["pattern"] = f"^{rule.pattern}$"
            return schema
        case OneOf():
            return {"type": "string", "enum": [option.value for option in rule.options]}
        case Json():
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case Pairs():
            return {"type": "object", "maxProperties": 256, "additionalProperties": expected(rule.value)}
        case Many():
            return {"type": "array", "maxItems": rule.most, "items": expected(rule.item)} | (
                {"minItems": rule.least} if rule.least else {}
            )
        case Part(short=""):
            return expected_object(rule.cls)
        case Part() | resource.Sources():
            # text or something else: only a schema without type allows both; the webhook looks inside
            return {"x-kubernetes-preserve-unknown-fields": True}
        case resource.RowShape():
            return {
                "type": "array",
                "maxItems": 8,
                "items": {"type": "integer", "format": "int64", "minimum": -1, "maximum": 2**31 - 1},
            }
    raise AssertionError(f"no schema for {rule}")


def expected_object(cls: type) -> Schema:
    declared = given_fields(cls)
    schema: Schema = {
        "type": "object",
        "properties": {given.key: expected_field(given) for given in declared.values()},
    }
    required = sorted(given.key for given in declared.values() if given.required)
    return schema | ({"required": required} if required else {})


def expected_field(given: Given) -> Schema:
    result = expected(given.rule) | {"description": given.about}
    return (
        result
        if given.required or given.default in (None, "", ())
        else result | {"default": plain(given.rule, given.default)}
    )


def plain(rule: object, value: Any) -> Any:
    """A default as the file would spell it. An object with defaults of its own is `{}`: Kubernetes fills in
    the rest from below."""
    if isinstance(rule, Part):
        return {}
    if isinstance(rule, Duration):
        return fields.duration(value)
    return (
        fields.quantity(value)
        if isinstance(rule, Quantity)
        else value.value
        if isinstance(rule, OneOf)
        else value
    )


def plain_schema(schema: Schema) -> Schema:
    """A schema without its CEL rules, `required` sorted."""
    plain = {
        key: value
        for key, value in schema.items()
        if key not in ("x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys")
    }
    if "properties" in plain:
        plain["properties"] = {key: plain_schema(value) for key, value in plain["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(plain.get(key), dict):
            plain[key] = plain_schema(plain[key])
    if "required" in plain:
        plain["required"] = sorted(plain["required"])
    return plain


def flat(schema: Schema, path: str = "spec") -> dict[str, Any]:
    """A schema as {place: value}, so that a difference names its place."""
    if not isinstance(schema, dict) or not schema:
        return {path: schema}
    return {
        place: value for key, below in schema.items() for place, value in flat(below, f"{path}.{key}").items()
    }


def test_the_schema_and_the_typed_model_agree_field_by_field() -> None:
    wanted = flat(expected_object(resource.GraphSpec) | {"description": "what the graph should be"})
    assert flat(plain_schema(SPEC)) == wanted


def test_every_object_is_closed() -> None:
    def objects(schema: Schema, path: str) -> list[str]:
        open_ones = (
            [path]
            if schema.get("type") == "object" and not ({"properties", "additionalProperties"} & set(schema))
            else []
        )
        for key, below in schema.get("properties", {}).items():
            open_ones += objects(below, f"{path}.{key}")
        return open_ones + (objects(schema["items"], f"{path}[]") if "items" in schema else [])

    assert objects(SPEC, "spec") == [
        "spec.frontend.service",
        "spec.frontend.podTemplate",
        "spec.managers.podTemplate",
        "spec.operators[].model.config",
        "spec.operators[].model.warmUp.row",
        "spec.operators[].podTemplate",
    ]


def test_names_are_those_of_the_api() -> None:
    names = CRD["spec"]["names"]
    assert CRD["metadata"]["name"] == f"{names['plural']}.{CRD['spec']['group']}" == "servicegraphs.hams.dev"
    assert (names["kind"], names["shortNames"], CRD["spec"]["scope"]) == (resource.KIND, ["sg"], "Namespaced")
    assert f"{CRD['spec']['group']}/{VERSION['name']}" == resource.API_VERSION
    assert (VERSION["served"], VERSION["storage"]) == (True, True)


def at(schema: Schema, path: str) -> Schema:
    """The schema at a JSON path as printer columns and scale use them; raises KeyError if nothing is
    there."""
    for step in re.sub(r"\[[^\]]*\]", "[]", path).lstrip(".").split("."):
        name, _, each = step.partition("[]")
        schema = schema["properties"][name]
        schema = schema["items"] if _ else schema
        assert not each
    return schema


@pytest.mark.parametrize("column", VERSION["additionalPrinterColumns"], ids=lambda column: column["name"])
def test_each_printed_column_shows_something_that_exists(column: Schema) -> None:
    if not column["jsonPath"].startswith(".metadata"):
        schema = at(VERSION["schema"]["openAPIV3Schema"], column["jsonPath"])
        assert schema["type"] == column["type"] or (column["type"], schema.get("format")) == (
            "date",
            "date-time",
        )


def test_the_columns_are_ready_url_in_sync_message_age_and_more_when_wide() -> None:
    columns = VERSION["additionalPrinterColumns"]
    assert [column["name"] for column in columns if not column.get("priority")] == [
        "Ready",
        "URL",
        "In-sync",
        "Message",
        "Age",
    ]
    assert [column["name"] for column in columns if column.get("priority")] == ["Epoch", "Last failover"]


def test_status_and_scale_are_subresources_whose_paths_exist() -> None:
    assert VERSION["subresources"]["status"] == {}
    scale = VERSION["subresources"]["scale"]
    whole = VERSION["schema"]["openAPIV3Schema"]
    assert at(whole, scale["specReplicasPath"])["type"] == "integer"
    assert at(whole, scale["statusReplicasPath"])["type"] == "integer"
    assert at(whole, scale["labelSelectorPath"])["type"] == "string"


def test_status_conditions_are_those_of_kubernetes() -> None:
    condition = STATUS["properties"]["conditions"]
    assert condition["x-kubernetes-list-map-keys"] == ["type"]
    assert set(condition["items"]["required"]) == {
        "type",
        "status",
        "reason",
        "message",
        "lastTransitionTime",
    }
    assert set(condition["items"]["properties"]) == {
        "type",
        "status",
        "reason",
        "message",
        "lastTransitionTime",
        "observedGeneration",
    }


def test_names_are_unique_in_every_list_of_named_things() -> None:
    operators = SPEC["properties"]["operators"]
    for item in (
        SPEC["properties"]["inputs"],
        SPEC["properties"]["outputs"],
        operators,
        operators["items"]["properties"]["outputs"],
    ):
        assert (item["x-kubernetes-list-type"], item["x-kubernetes-list-map-keys"]) == ("map", ["name"])


def test_every_rule_says_what_is_wrong() -> None:
    def rules(schema: Schema) -> list[Schema]:
        below = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        return schema.get("x-kubernetes-validations", []) + [rule for item in below for rule in rules(item)]

    result = rules(SPEC)
    assert len(result) >= 4
    assert all(rule["rule"] and rule["message"] for rule in result)


def test_every_model_field_has_a_meaning_in_words() -> None:
    classes = [
        item
        for item in vars(resource).values()
        if dataclasses.is_dataclass(item) and isinstance(item, type) and item.__module__ == resource.__name__
    ]
    described = [
        given
        for cls in classes
        if all("given" in field.metadata for field in dataclasses.fields(cls))
        for given in given_fields(cls).values()
    ]
    assert len(described) > 40
    assert all(given.about for given in described)
