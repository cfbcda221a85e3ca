"""Web pages from elsewhere, opened in a browser on the machine of a local run, may not ask it: the browser
would let a plain POST through."""

import pytest
from tests.sidecar.endpoint.test_head import BODY, H, L, infer

from hams_sidecar.endpoint.endpoint import Address

PLAIN = b"Content-Type: text/plain"


@pytest.mark.parametrize(
    "origin",
    [
        b"https://example.org",
        b"null",
        b"http://127.0.0.1.example.org",
        b"http://rebound.example.org:8080",
        b"http://[::1",
    ],
)
async def test_a_post_of_a_page_from_elsewhere_is_refused_and_reaches_no_model(serve, origin: bytes) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(infer(H, L, PLAIN, b"Origin: " + origin))
    status, _, body = await raw.answer()
    assert status == 403
    assert b"web page from elsewhere" in body
    assert running.port.requests == []


@pytest.mark.parametrize(
    "fields", [(), (b"Origin: http://localhost:3000",), (b"Origin: http://127.0.0.1:8888",)], ids=repr
)
async def test_a_program_and_a_page_of_this_machine_are_answered(serve, fields: tuple[bytes, ...]) -> None:
    running = await serve()
    raw = await running.connect()
    await raw.send(infer(H, L, *fields))
    assert (await raw.answer())[0] == 200
    assert len(running.port.requests) == 1


async def test_an_endpoint_that_others_can_reach_leaves_origins_to_what_is_in_front_of_it(serve) -> None:
    running = await serve(address=Address("0.0.0.0", 0, 0))
    raw = await running.connect()
    await raw.send(infer(H, L, b"Origin: https://example.org", rest=BODY))
    assert (await raw.answer())[0] == 200
