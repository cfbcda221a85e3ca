"""Requests made from a signature, with boundaries in every place, against a real endpoint: the short form of
`tests/fuzz/requests.py`."""

from tests.fuzz.requests import Run, generate, heavy
from tests.sidecar.endpoint.doubles import graph

from hams_protocol.graph import TensorSpec

COUNT = 400

MIXED = graph(
    TensorSpec("x", "FP32", (-1,)),
    TensorSpec("words", "BYTES", (-1, 2), optional=True),
    TensorSpec("target", "INT64", (), optional=True),
)


async def test_F37_no_request_of_a_signature_breaks_the_endpoint_or_a_good_client(serve) -> None:
    running = await serve(MIXED)
    run = Run(MIXED, f"http://{running.http}", running.grpc)
    await run.send(generate(MIXED, COUNT, 1))
    # What a request waits for here is this machine: the long form measures it.
    assert [line for line in run.findings.wrong if "waited" not in line] == []
    assert run.findings.codes["200"] + run.findings.codes["OK"] > COUNT // 20, (
        "most are nearly right, some are right"
    )
    assert run.findings.codes.total() == COUNT
    assert running.endpoint.open_requests == 0
    for request in running.port.requests:
        for tensor in request.tensors:
            assert all(0 <= dim < 2**31 for dim in tensor.shape)


async def test_F37_requests_that_cost_far_more_than_their_bytes_are_refused_or_served(serve) -> None:
    running = await serve(MIXED)
    run = Run(MIXED, f"http://{running.http}", running.grpc)
    requests = heavy(MIXED, 1 << 20)
    await run.send(requests)
    assert [line for line in run.findings.wrong if "waited" not in line] == []
    assert run.findings.codes.total() == len(requests)
    assert running.endpoint.open_requests == 0
