"""What the daemon holds in the file system, looked after for life: somebody may tidy up under it."""

import socket
from collections.abc import Awaitable, Callable

import anyio

from vllm_supervisor.adapters.sockets import ControlSocket
from vllm_supervisor.domain.model import Blocker
from vllm_supervisor.errors import SupervisorError
from vllm_supervisor.ports import Level, Note
from vllm_supervisor.runtime.tasks import Post, told

INTERVAL = 10.0
"""Seconds between looks: each costs a few calls of the kernel."""


async def keep_state_dir(
    hold: Callable[[], Awaitable[Blocker | None]], post: Post, *, interval: float = INTERVAL
) -> None:
    """Look now and then whether the state directory is still ours, and make it again where it is gone, by `hold`."""
    known: Blocker | None = None
    while True:
        await anyio.sleep(interval)
        with told("state_dir", post):
            blocker = await hold()
            if blocker is not None and blocker != known:
                post(Note("state_dir_lost", Level.ERROR, {"why": blocker.why, "remedy": blocker.remedy}))
            known = blocker


async def keep_control(
    control: ControlSocket,
    serve: Callable[[socket.socket], Awaitable[None]],
    post: Post,
    *,
    interval: float = INTERVAL,
) -> None:
    """Look now and then whether the control socket is still at its path, and have another one served where it is gone.

    Without, every command would say that no daemon answers, until the next restart.
    """
    known: str | None = None
    while True:
        await anyio.sleep(interval)
        with told("control_socket", post):
            try:
                renewed = control.renew()
            except SupervisorError as error:
                if str(error) != known:
                    post(Note("control_socket_lost", Level.ERROR, {"why": error.why, "remedy": error.remedy}))
                known = str(error)
                continue
            known = None
            if renewed is not None:
                await serve(renewed)
                post(Note("control_socket_renewed", Level.WARNING, {"path": control.path}))
