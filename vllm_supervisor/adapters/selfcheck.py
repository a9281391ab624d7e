"""Whether our own control socket answers, asked the way any client would ask."""

import anyio

_REQUEST = b"GET /livez HTTP/1.0\r\nHost: self\r\n\r\n"


async def answers(path: str) -> bool:
    """Say whether a request on the Unix socket at `path` is answered with 200. Without end when it is not answered."""
    try:
        async with await anyio.connect_unix(path) as stream:
            await stream.send(_REQUEST)
            head = await stream.receive()
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        return False
    return b" 200 " in head.partition(b"\r\n")[0]
