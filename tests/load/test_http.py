"""The HTTP client of load."""

import asyncio

import pytest

from hams_load.http import NoResponse, Pool, endpoint


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8080",
        "https://x",
        "http://",
        "http://x:0",
        "http://x:70000",
        "http://x y",
        "http://u@x",
        "http://x/?a",
        "",
    ],
)
def test_only_a_url_that_can_be_asked_is_taken(url):
    with pytest.raises(ValueError, match="expected a URL like "):
        endpoint(url)


def test_an_endpoint_has_a_port_and_a_path():
    assert endpoint("http://[::1]:8081/graphs/") == ("::1", 8081, "/graphs")
    assert endpoint("http://example") == ("example", 80, "")


async def serve(answers: list[bytes]):
    """A server that gives each request the next answer; b"" closes the connection."""
    left = list(answers)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(
                int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            )
            answer = left.pop(0)
            if not answer:
                break
            writer.write(answer)
        writer.close()

    return await asyncio.start_server(one, "127.0.0.1", 0)


async def test_the_pool_keeps_connections_and_never_repeats_by_itself():
    plain = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\ncontent-length: 2\r\n\r\nno"
    server = await serve([plain, b"", b"garbage\r\n\r\n", plain])
    pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 30)
    by_name = await pool.post("/x", {}, b"body")
    assert (by_name.status, by_name.headers["retry-after"], by_name.body) == (503, "2", b"no")
    with pytest.raises(NoResponse, match="broke"):
        await pool.post("/x", {}, b"body")
    with pytest.raises(NoResponse, match="not HTTP"):
        await pool.post("/x", {}, b"body")
    assert (await pool.post("/x", {}, b"body")).status == 503
    pool.close()
    server.close()
    with pytest.raises(NoResponse, match="cannot connect"):
        await pool.post("/x", {}, b"body")
    with pytest.raises(ValueError, match="expected a URL"):
        Pool("ftp://x", 1)
