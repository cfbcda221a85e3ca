"""The JSON and binary form of requests and replies (Open Inference Protocol v2 REST, binary tensor data
extension).

A body is a JSON object, and behind it, if `Inference-Header-Content-Length` says where it ends, the binary
tensors one after another. Binary tensors are views into the body: nothing is copied. Replies are lists of
buffers, for the same reason.

Invariant: a request that passes is right by `Signature`; a body is used up to its last byte.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from hams_protocol.frozen import frozen
from hams_sidecar.endpoint.errors import RequestRefused, shown
from hams_sidecar.endpoint.json_data import read, write
from hams_sidecar.endpoint.json_scan import Outline, Steps, outline
from hams_sidecar.endpoint.limits import json_slice_bytes, parameters_bytes_max, tensors_spare
from hams_sidecar.endpoint.request import MODEL_VERSION, NO_PARAMETERS, Parameters, check_id, split
from hams_sidecar.endpoint.signature import Signature, check_size
from hams_sidecar.inference import Buffer, Tensor

parameters_json_bytes_max = 2 * parameters_bytes_max
"""A request's parameters as JSON, in a body: more is not decoded."""

heads_known_max = 256
"""JSON heads of binary requests that are remembered as passed."""

head_known_bytes_max = 2048
"""A larger head is read anew each time."""

_NO_DATA = msgspec.Raw(b"")


class _InputParameters(msgspec.Struct, gc=False):
    """Parameters of one tensor. Others than these are allowed, and nothing to us (codecs of other servers use
    them)."""

    binary_data_size: int | None = None
    shared_memory_region: msgspec.Raw = _NO_DATA


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: _InputParameters | None = None
    data: msgspec.Raw = _NO_DATA


class _OutputParameters(msgspec.Struct, gc=False):
    binary_data: bool | None = None
    classification: msgspec.Raw = _NO_DATA
    shared_memory_region: msgspec.Raw = _NO_DATA


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputParameters | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: msgspec.Raw = _NO_DATA
    outputs: list[_Output] | None = None


_decode = msgspec.json.Decoder(_Request).decode
_decode_parameters = msgspec.json.Decoder(dict[str, object]).decode
_encode = msgspec.json.Encoder().encode
_MARK = secrets.token_hex(16).encode()
"""Stands for data that was cut out of a large body: no client knows it."""


@frozen
class ReplyForm:
    """How the client wants its reply: which outputs (None: all), and which of them binary; `binary` holds for
    those it said nothing of."""

    id: str | None
    outputs: tuple[str, ...] | None
    binary: bool
    binary_of: tuple[tuple[str, bool], ...] = ()

    def is_binary(self, name: str) -> bool:
        """Whether this output goes out binary."""
        for given, binary in self.binary_of:
            if given == name:
                return binary
        return self.binary


@frozen
class RestRequest:
    """A decoded and checked body."""

    tensors: tuple[Tensor, ...]
    parameters: Parameters
    form: ReplyForm


class _Head(NamedTuple):
    """What a head says: the length of the whole body, where each tensor lies in it, and the rest of the
    request."""

    size: int
    tensors: tuple[tuple[str, str, tuple[int, ...], int, int], ...]
    parameters: Parameters
    form: ReplyForm


class KnownHeads:
    """JSON heads of requests with binary tensors that have passed, by their bytes: mostly the next request
    differs in its tensors alone.

    Bounded in number and size. Not kept is what must be looked at again (BYTES) and what belongs to one
    request (id, key).
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, _Head] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, head: bytes, body: Buffer) -> RestRequest | None:
        """The request, if its head is known and its body as long as that says."""
        known = self._heads.get(head)
        if known is None or known.size != len(body):
            return None
        rest = memoryview(body).toreadonly()
        tensors = tuple(
            [Tensor(name, datatype, shape, rest[at:end]) for name, datatype, shape, at, end in known.tensors]
        )
        return RestRequest(tensors, known.parameters, known.form)

    def keep(self, head: bytes, body: Buffer, request: RestRequest, places: dict[str, int]) -> None:
        """Remember a request that has passed; `places`: where its binary tensors begin."""
        if (
            request.form.id is not None
            or request.parameters.idempotency_key is not None
            or len(places) != len(request.tensors)
        ):
            return
        if len(self._heads) >= heads_known_max:
            self._heads.clear()
        tensors = tuple(
            [
                (item.name, item.datatype, item.shape, places[item.name], places[item.name] + len(item.data))
                for item in request.tensors
            ]
        )
        self._heads[head] = _Head(len(body), tensors, request.parameters, request.form)


def decode_request(
    body: Buffer, header_length: str | None, signature: Signature, known: KnownHeads
) -> Steps[RestRequest]:
    """Read and check a request body; `header_length` is the `Inference-Header-Content-Length` header. Raises
    RequestRefused."""
    end = len(body) if header_length is None else _json_length(header_length, len(body))
    head: bytes | None = None
    if header_length is not None and end <= head_known_bytes_max:
        head = bytes(body[:end])
        again = known.find(head, body)
        if again is not None:
            return again
    text = memoryview(body)[:end]
    large = Outline(b"", b"", ())
    if end > json_slice_bytes:
        large = yield from outline(text, _MARK)
    decoded, parameters_given = _read_head(text, large)
    if len(decoded.inputs) > len(signature.inputs) + tensors_spare:
        raise RequestRefused(f"expected {len(signature.inputs)} tensors at most, got {len(decoded.inputs)}")
    tensors: list[Tensor] = []
    places: dict[str, int] = {}
    rest = memoryview(body).toreadonly()
    at = end
    for given in decoded.inputs:
        expected = signature.expect(given.name, given.datatype, given.shape)
        shape = tuple(given.shape)
        size = _binary_size(given)
        data: Buffer
        if size is None:
            array = _json_data(given, large)
            data = yield from read(given.name, given.datatype, shape, array, signature.nbytes_max)
        else:
            _check_binary(given, size, len(body) - at, header_length)
            data = rest[at : at + size]
            yield from check_size(given.name, shape, expected, data)
            if expected is not None:
                places[given.name] = at
            at += size
        tensors.append(Tensor(given.name, given.datatype, shape, data))
    if at != len(body):
        raise RequestRefused(
            f"expected a body of {at} bytes, got {len(body)}: {len(body) - at} bytes belong to no tensor"
        )
    arranged = signature.arrange(tensors)
    parameters = (
        split(parameters_given, signature.parameters_bytes_max) if parameters_given else NO_PARAMETERS
    )
    request = RestRequest(
        arranged, parameters, _reply_form(decoded, parameters.binary_data_output, signature)
    )
    if head is not None:
        known.keep(head, body, request, places)
    return request


def encode_reply(
    model: str, form: ReplyForm, tensors: Sequence[Tensor]
) -> Steps[tuple[int | None, list[Buffer]]]:
    """The body of a reply: buffers to send one after another, and the length of its JSON part if binary
    tensors follow. Raises RequestRefused.

    The frame around the tensors is put together here, so that data in JSON, which may be large, is not copied
    into it.
    """
    about: dict[str, object] = {"model_name": model, "model_version": MODEL_VERSION}
    if form.id is not None:
        about["id"] = form.id
    head: list[Buffer] = [_encode(about)[:-1], b',"outputs":[']
    binary: list[Buffer] = []
    for index, tensor in enumerate(tensors):
        if index:
            head.append(b",")
        described: dict[str, object] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
        }
        if form.is_binary(tensor.name):
            described["parameters"] = {"binary_data_size": len(tensor.data)}
            head.append(_encode(described))
            binary.append(tensor.data)
            continue
        try:
            data = yield from write(tensor.datatype, tensor.shape, tensor.data)
        except UnicodeDecodeError:
            raise RequestRefused(
                f"output {tensor.name!r} holds bytes that are not UTF-8, which JSON cannot carry: ask for "
                "it with the parameter binary_data"
            ) from None
        head += (_encode(described)[:-1], b',"data":', *data, b"}")
    head.append(b"]}")
    return (sum(map(len, head)), [*head, *binary]) if binary else (None, head)


def encode_error(message: str, details: Mapping[str, object] = MappingProxyType({})) -> bytes:
    """The body of every error."""
    return _encode({"error": message, **details})


def choose(tensors: Iterable[Tensor], outputs: tuple[str, ...] | None) -> list[Tensor]:
    """The tensors of a reply that were asked for, in the order they were asked for. Skipped ones are left
    out."""
    if outputs is None:
        return list(tensors)
    by_name = {tensor.name: tensor for tensor in tensors}
    return [by_name[name] for name in outputs if name in by_name]


def _is_given(text: msgspec.Raw) -> bool:
    return bytes(text) not in (b"", b"null")


def _read_head(text: memoryview, large: Outline) -> tuple[_Request, dict[str, object] | None]:
    """The JSON part and the request's parameters. Raises RequestRefused."""
    try:
        decoded = _decode(large.head or text)
        return decoded, _parameters(decoded.parameters) if _is_given(decoded.parameters) else None
    except RecursionError:
        raise RequestRefused("malformed JSON: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(_malformed(error, len(text))) from None


def _binary_size(given: _Input) -> int | None:
    """Bytes of a tensor's binary data; None if its data is JSON."""
    if given.parameters is None:
        return None
    if _is_given(given.parameters.shared_memory_region):
        raise RequestRefused(
            f"tensor {given.name!r}: shared memory is not offered; send the data as JSON or binary"
        )
    return given.parameters.binary_data_size


def _json_data(given: _Input, large: Outline) -> memoryview:
    """The JSON text of a tensor's data, from where `large` put it if it was cut out of the body."""
    if given.data is _NO_DATA:
        raise RequestRefused(
            f"tensor {given.name!r}: expected data, or the parameter binary_data_size, got neither"
        )
    text = memoryview(given.data)
    array = large.array(text) if large.arrays else None
    return text if array is None else array


def _check_binary(given: _Input, size: int, left: int, header_length: str | None) -> None:
    """Raises RequestRefused unless `size` of the `left` bytes of the body can be the tensor's data."""
    if given.data is not _NO_DATA:
        raise RequestRefused(
            f"tensor {given.name!r}: expected either data or the parameter binary_data_size, got both"
        )
    if header_length is None:
        raise RequestRefused(
            f"tensor {given.name!r}: binary data needs the header Inference-Header-Content-Length, "
            "which is missing"
        )
    if not 0 <= size <= left:
        raise RequestRefused(
            f"tensor {given.name!r}: binary_data_size is {shown(size)}, but {left} bytes of the body are left"
        )


def _parameters(text: msgspec.Raw) -> dict[str, object]:
    """Parameters as they were given. Raises RequestRefused, msgspec.DecodeError."""
    if len(bytes(text)) > parameters_json_bytes_max:
        raise RequestRefused(
            f"expected parameters of at most {parameters_json_bytes_max} bytes of JSON, got "
            f"{len(bytes(text))}"
        )
    parameters: dict[str, object] = _decode_parameters(text)
    return parameters


def _reply_form(request: _Request, binary: bool, signature: Signature) -> ReplyForm:
    identity = None if request.id is None else check_id(request.id)
    if not request.outputs:
        return ReplyForm(identity, None, binary)
    outputs = signature.select(output.name for output in request.outputs)
    binary_of: list[tuple[str, bool]] = []
    for output in request.outputs:
        if output.parameters is None:
            continue
        if _is_given(output.parameters.shared_memory_region) or _is_given(output.parameters.classification):
            raise RequestRefused(f"output {output.name!r}: shared memory and classification are not offered")
        if output.parameters.binary_data is not None:
            binary_of.append((output.name, output.parameters.binary_data))
    return ReplyForm(identity, outputs, binary, tuple(binary_of))


def _json_length(header: str, size: int) -> int:
    if not (header.isascii() and header.isdigit() and len(header) < 20) or not 0 < int(header) <= size:
        raise RequestRefused(
            f"header Inference-Header-Content-Length: expected 1 to {size}, the size of the body, got "
            f"{header[:40]!r}"
        )
    return int(header)


def _malformed(error: Exception, size: int) -> str:
    if size == 0:
        return "expected a JSON object, got an empty body"
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        return f"request: {text[:1].lower()}{text[1:]}"
    return f"malformed JSON: {text.removeprefix('JSON is malformed: ')}"
