"""The infer route in the OpenAPI document, with the graph's own tensors: what `/docs` shows and lets a reader
try.

The route is not one of FastAPI's (its hot path knows no routing), so its entry is written here. It documents;
it never decides what is accepted.
"""

from hams_protocol.graph import GraphData
from hams_sidecar.endpoint.request import MODEL_VERSION
from hams_sidecar.endpoint.signature import DeclaredTensor, Signature

_EXAMPLE_ROWS = 1
_VARIABLE_EXAMPLE = 2
_EXAMPLE_VALUES_MAX = 256

_ERRORS = {
    400: "The request is malformed; names the tensor, what was expected and what was found.",
    404: "No such model or version.",
    409: "The idempotency key stands for another payload.",
    410: "The reply of this idempotency key is no longer kept.",
    413: "The body is larger than the graph's maxRequestBytes.",
    422: "Every input of a First join was refused.",
    429: "No room at present; nothing was begun. `Retry-After` says when to try again.",
    500: "A model failed on this request; names the operator. Kept under the key like any reply.",
    503: "The graph does not serve at present; nothing was begun.",
    504: "No reply in time. The request may still take effect; the same idempotency key returns its reply.",
}

_ABOUT = """Runs one request through the graph. Its tensors share their first dimension, the rows.

With an `Idempotency-Key` it takes effect once and has one reply, however often it is sent and whatever \
fails in between.
Tensors may be JSON (flat or nested) or, behind the JSON, binary: then `Inference-Header-Content-Length` \
gives the size of the JSON part.

Inputs: {inputs}

Outputs: {outputs}"""


def describe(document: dict[str, object], graph: GraphData, signature: Signature) -> dict[str, object]:
    """Add the infer route to FastAPI's document."""
    optional = {spec.name for spec in graph.inputs if spec.optional}
    paths = document.setdefault("paths", {})
    components = document.setdefault("components", {})
    assert isinstance(paths, dict)
    assert isinstance(components, dict)
    schemas = components.setdefault("schemas", {})
    schemas.update(_schemas())
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    binary = {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": "The JSON object, and behind it the binary tensors one after another.",
        }
    }
    paths[f"/v2/models/{graph.name}/infer"] = {
        "post": {
            "tags": ["inference"],
            "summary": f"Infer with {graph.name}",
            "description": _ABOUT.format(
                inputs=", ".join(
                    _line(declared, declared.name in optional) for declared in signature.inputs.values()
                ),
                outputs=", ".join(_line(declared, False) for declared in signature.outputs.values()),
            ),
            "operationId": "infer",
            "parameters": [
                _header("Idempotency-Key", "One effect and one reply for this key.", "string"),
                _header(
                    "Inference-Header-Content-Length", "Size of the JSON part of a binary request.", "integer"
                ),
                _header("traceparent", "W3C trace context, handed on.", "string"),
            ],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {"$ref": "#/components/schemas/InferRequest"},
                        "example": _example(signature, optional),
                    },
                    "application/octet-stream": binary,
                },
            },
            "responses": {
                "200": {
                    "description": "The graph's reply. Outputs that were skipped are left out.",
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/InferReply"}},
                        "application/octet-stream": binary,
                    },
                },
                **{str(status): {"description": what, **error} for status, what in _ERRORS.items()},
            },
        }
    }
    return document


def _schemas() -> dict[str, object]:
    shape = {"type": "array", "items": {"type": "integer"}}
    parameters = {
        "type": "object",
        "additionalProperties": {
            "anyOf": [{"type": kind} for kind in ("boolean", "integer", "number", "string")]
        },
    }
    tensor = {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": shape,
        "parameters": parameters,
        "data": {"type": "array", "items": {}},
    }
    outputs = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "parameters": parameters},
        },
    }
    tensors = {
        "type": "array",
        "items": {"type": "object", "required": ["name", "datatype", "shape"], "properties": tensor},
    }
    return {
        "InferRequest": {
            "type": "object",
            "required": ["inputs"],
            "properties": {
                "id": {"type": "string"},
                "parameters": parameters,
                "inputs": tensors,
                "outputs": outputs,
            },
        },
        "InferReply": {
            "type": "object",
            "required": ["model_name", "model_version", "outputs"],
            "properties": {
                "model_name": {"type": "string"},
                "model_version": {"type": "string", "const": MODEL_VERSION},
                "id": {"type": "string"},
                "outputs": tensors,
            },
        },
    }


def _header(name: str, what: str, kind: str) -> dict[str, object]:
    return {"name": name, "in": "header", "required": False, "description": what, "schema": {"type": kind}}


def _line(declared: DeclaredTensor, optional: bool) -> str:
    return f"`{declared.name}` {declared.datatype} {declared.shape}{' (optional)' if optional else ''}"


def _example(signature: Signature, optional: set[str]) -> dict[str, object]:
    """A request that passes, as small as the shapes allow; large tensors are only hinted at."""
    inputs: list[dict[str, object]] = []
    for declared in signature.inputs.values():
        if declared.name in optional and len(signature.inputs) > len(optional):
            continue
        shape = [_EXAMPLE_ROWS, *(_VARIABLE_EXAMPLE if dim < 0 else dim for dim in declared.row_shape)]
        count = 1
        for dim in shape:
            count *= dim
        value: object = {"BOOL": True, "BYTES": "text"}.get(declared.datatype, 0)
        inputs.append(
            {
                "name": declared.name,
                "datatype": declared.datatype,
                "shape": shape,
                "data": [value] * min(count, _EXAMPLE_VALUES_MAX),
            }
        )
    return {"inputs": inputs}
