"""The routes: what they answer, to whom, and what they refuse."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import anyio
import pytest

from tests.fakes.house import MODEL, SPEC, House, build, wall
from tests.fakes.logs import FakeLogs
from tests.fakes.situations import BUSY
from vllm_supervisor.config.changes import Changes
from vllm_supervisor.domain.messages import RestartAsked, ShutdownAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import Cause, Phase
from vllm_supervisor.errors import ConfigError, Problem
from vllm_supervisor.ports import Peer, Request, Response
from vllm_supervisor.runtime.api import MAX_TAIL, Api
from vllm_supervisor.runtime.recorder import Recorder
from vllm_supervisor.runtime.reload import ReloadAsked, Reloaded, ReloadRefusedError

pytestmark = pytest.mark.anyio

ADMIN = Peer(pid=42, uid=1000, gid=1000)
STRANGER = Peer(pid=43, uid=1001, gid=1000)
GETS = ("/v1/status", "/v1/models", "/v1/events", "/v1/logs")
PUBLIC = ("/metrics", "/livez", "/readyz")
POSTS = ("/v1/start", "/v1/stop", "/v1/restart", "/v1/reload")


class Front:
    """A house and its routes."""

    def __init__(self) -> None:
        self.recorder = Recorder(wall)
        self.house: House = build(spec=SPEC, more=(self.recorder,))
        self.logs = FakeLogs(b"one\n", b"two\n", b"three\n")
        self.api = Api(
            self.house.supervisor,
            self.recorder,
            self.logs,
            lambda: b"vllm_supervisor_ready 1\n",
            self.reload,
        )
        self.api.admit((0, 1000))
        self.reloads: list[ReloadAsked] = []
        self.reload_is: Reloaded | Exception = Reloaded(Changes(live=("engine.vllm.concurrency",)))

    async def reload(self, asked: ReloadAsked) -> Reloaded:
        self.reloads.append(asked)
        if isinstance(self.reload_is, Exception):
            raise self.reload_is
        return self.reload_is

    async def get(self, path: str, method: str = "GET", **query: str) -> Response:
        return await self.api.control(Request(method, path, query, peer=STRANGER))

    async def post(self, path: str, body: object = None, peer: Peer | None = ADMIN) -> Response:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await self.api.control(Request("POST", path, {}, raw, peer))


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    front = Front()
    async with front.house.run():
        yield front


def body(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body


def parsed(response: Response) -> dict[str, object]:
    value = json.loads(body(response))
    assert isinstance(value, dict)
    return value


def code(response: Response) -> object:
    """Return the code of an error, having checked its shape."""
    value = parsed(response)
    assert set(value) == {"error"}
    error = value["error"]
    assert isinstance(error, dict)
    assert set(error) == {"code", "message"}
    assert error["message"]
    assert response.content_type == "application/json"
    return error["code"]


# --- questions


async def test_status(front: Front) -> None:
    """The object, to anybody who reached the socket."""
    response = await front.get("/v1/status")
    assert (response.status, response.content_type) == (200, "application/json")
    assert parsed(response) == front.house.supervisor.status()


async def test_models_are_empty_until_ready(front: Front) -> None:
    """Aliases included then."""
    assert parsed(await front.get("/v1/models")) == {"models": []}
    await front.house.started()
    models = parsed(await front.get("/v1/models"))
    assert models == {"models": [{"name": MODEL, "served": MODEL}, {"name": "gpt-oss-20b", "served": MODEL}]}


async def test_events_are_json_lines(front: Front) -> None:
    """All that is remembered, and then the end."""
    await front.house.started()
    response = await front.get("/v1/events")
    assert (response.status, response.content_type) == (200, "application/jsonl")
    assert [json.loads(line)["seq"] for line in body(response).splitlines()] == [1, 2, 3, 4]
    assert body(await front.get("/v1/events", follow="0")) == body(response)


async def test_events_are_followed(front: Front) -> None:
    """A stream that goes on with what comes."""
    await front.house.started()
    response = await front.get("/v1/events", follow="1")
    assert isinstance(response.body, AsyncGenerator)
    async with aclosing(response.body) as stream:
        with anyio.fail_after(10):
            assert (await anext(stream)).count(b"\n") == 4
            front.house.supervisor.post(StartAsked())
            assert b"start_asked" in await anext(stream)


async def test_logs(front: Front) -> None:
    """The last lines as text, followed on request."""
    assert body(await front.get("/v1/logs")) == b"one\ntwo\nthree\n"
    response = await front.get("/v1/logs", tail="2")
    assert (body(response), response.content_type) == (b"two\nthree\n", "text/plain; charset=utf-8")
    assert body(await front.get("/v1/logs", tail="0")) == b""
    assert (await front.get("/v1/logs", tail=str(MAX_TAIL))).status == 200
    followed = await front.get("/v1/logs", tail="1", follow="1")
    assert not isinstance(followed.body, bytes)
    assert [part async for part in followed.body] == [b"three\n", b"appended\n"]


@pytest.mark.parametrize("follow", ["0", "1"])
async def test_a_log_that_cannot_be_read_is_refused(front: Front, follow: str) -> None:
    """An empty answer would pass for an empty log, and a stream that ends for a daemon that ended."""
    front.logs.unread = "not allowed; allow it"
    response = await front.get("/v1/logs", follow=follow)
    assert (response.status, code(response)) == (409, "log_not_read")
    assert "not allowed; allow it" in body(response).decode()


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/logs", {"tail": "-1"}),
        ("/v1/logs", {"tail": "many"}),
        ("/v1/logs", {"tail": ""}),
        ("/v1/logs", {"tail": "1e3"}),
        ("/v1/logs", {"tail": "٣"}),
        ("/v1/logs", {"tail": str(MAX_TAIL + 1)}),
        ("/v1/logs", {"tail": "9" * 5000}),
        ("/v1/logs", {"follow": "yes"}),
        ("/v1/events", {"follow": "true"}),
    ],
)
async def test_a_query_that_makes_no_sense(front: Front, path: str, query: dict[str, str]) -> None:
    """400, and a message that does not repeat 5,000 digits."""
    response = await front.get(path, **query)
    assert (response.status, code(response)) == (400, "bad_request")
    assert len(body(response)) < 300


async def test_what_both_listeners_answer(front: Front) -> None:
    """`/metrics`, `/livez`, `/readyz`."""
    for handler in (front.api.control, front.api.public):
        metrics = await handler(Request("GET", "/metrics"))
        assert (metrics.status, metrics.body) == (200, b"vllm_supervisor_ready 1\n")
        assert metrics.content_type.startswith("text/plain; version=0.0.4")
        assert (await handler(Request("GET", "/livez"))).status == 200
        assert (await handler(Request("GET", "/readyz"))).status == 503


async def test_readyz_follows_the_state(front: Front) -> None:
    """200 when ready, 503 with the phase's name from the moment a drain begins."""
    await front.house.started()
    assert ((await front.get("/readyz")).status, body(await front.get("/readyz"))) == (200, b"ready\n")
    front.house.client.metrics_is = BUSY
    assert (await front.post("/v1/stop")).status == 202
    response = await front.get("/readyz")
    assert (response.status, body(response)) == (503, b"stopping\n")
    assert parsed(await front.get("/v1/models")) == {"models": []}


@pytest.mark.parametrize("path", GETS + PUBLIC)
async def test_head_is_answered_as_get(front: Front, path: str) -> None:
    """The listener leaves the body out."""
    get = await front.get(path)
    head = await front.get(path, method="HEAD")
    assert (head.status, head.content_type) == (get.status, get.content_type)


async def test_what_is_not_there(front: Front) -> None:
    """404 on the socket; on the metrics listener everything but its three paths."""
    for path in ("/", "/v1", "/v1/status/", "/v1/nothing", "/V1/status", "/v1/reloads"):
        response = await front.get(path)
        assert (response.status, code(response)) == (404, "not_found")
    for path in (*GETS, *POSTS, "/", "/v1/nothing"):
        for method in ("GET", "POST"):
            response = await front.api.public(Request(method, path, peer=ADMIN))
            assert (response.status, code(response)) == (404, "not_found")


async def test_the_wrong_method(front: Front) -> None:
    """405, both ways, and nothing is changed."""
    for path in GETS + PUBLIC:
        response = await front.post(path)
        assert (response.status, code(response)) == (405, "method_not_allowed")
    for path in POSTS:
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            response = await front.api.control(Request(method, path, peer=ADMIN))
            assert (response.status, code(response)) == (405, "method_not_allowed")
    for path in PUBLIC:
        assert (await front.api.public(Request("POST", path))).status == 405
    assert front.house.observer.records == []


async def test_labels_are_a_fixed_few(front: Front) -> None:
    """Whatever clients ask for cannot fill the metrics."""
    asked = [*GETS, *PUBLIC, *POSTS, *(f"/v1/{n}" for n in range(1000)), "", "/v1/status?x", "/v1/status/"]
    assert {front.api.route(path) for path in asked} == {*GETS, *PUBLIC, *POSTS, "other"}


# --- changes


async def test_start_stop_and_restart(front: Front) -> None:
    """202 with the status as it is after the request; who asked is noted."""
    response = await front.post("/v1/start", {"reason": "morning"})
    assert (response.status, parsed(response)["state"]) == (202, "starting")
    await front.house.until(Phase.READY)
    response = await front.post("/v1/restart", {"reason": "new weights", "drain": False})
    assert (response.status, parsed(response)["state"]) == (202, "stopping")
    await front.house.until(Phase.STARTING)
    await front.house.until(Phase.READY)
    response = await front.post("/v1/stop")
    assert (response.status, parsed(response)["intent"]) == (202, "down")
    await front.house.until(Phase.STOPPED)
    notes = [note.fields for note in front.house.observer.noticed("control_request")]
    assert notes == [
        {"verb": "start", "uid": 1000, "pid": 42, "reason": "morning"},
        {"verb": "restart", "uid": 1000, "pid": 42, "reason": "new weights"},
        {"verb": "stop", "uid": 1000, "pid": 42, "reason": None},
    ]
    asked = [event for _, event, _, _ in front.house.observer.steps]
    assert StartAsked() in asked
    assert RestartAsked(Cause.REQUESTED, drain=False) in asked
    assert StopAsked(drain=True) in asked
    assert front.house.supervisor.facts.restarts[Cause.REQUESTED] == 1


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("peer", [None, STRANGER], ids=["no-peer", "foreign-uid"])
async def test_who_may_not_change_the_state(front: Front, path: str, peer: Peer | None) -> None:
    """403, naming the remedy; nothing is changed, noted or even parsed."""
    response = await front.post(path, b"not json", peer)
    assert (response.status, code(response)) == (403, "forbidden")
    assert b"control.admins" in body(response)
    await front.house.a_moment()
    assert front.house.observer.order == []


@pytest.mark.parametrize(
    "sent",
    [
        b"{",
        b"\xff\xfe\xfd",
        b"[" * 60_000,
        b'{"reason": ' + b"9" * 5000 + b"}",
        [],
        "text",
        {"drain": "yes"},
        {"drain": None},
        {"drain": 1},
        {"reason": 5},
        {"reason": "x" * 1001},
        {"reasn": "typo"},
        {"drain": True, "force": True},
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_a_body_that_makes_no_sense(front: Front, sent: object) -> None:
    """400, and nothing is changed."""
    response = await front.post("/v1/start", sent)
    assert (response.status, code(response)) == (400, "bad_request")
    await front.house.a_moment()
    assert front.house.observer.order == []


@pytest.mark.parametrize("path", ["/v1/start", "/v1/restart"])
async def test_too_late(front: Front, path: str) -> None:
    """409 while the daemon is ending, and when it has ended; a stop is what happens anyway."""
    await front.house.started()
    front.house.client.metrics_is = BUSY
    front.house.supervisor.post(ShutdownAsked())
    await front.house.until(Phase.STOPPING)
    response = await front.post(path)
    assert (response.status, code(response)) == (409, "conflict")
    assert (await front.post("/v1/stop")).status == 202
    assert await front.house.ended() == 0
    with anyio.fail_after(1):
        assert (await front.post(path)).status == 409


# --- reloads


async def test_a_reload_is_handed_on_and_answered_with_what_it_came_to(front: Front) -> None:
    """202 with the status and, under `reload`, the keys; what was asked for arrives as it was asked for."""
    front.reload_is = Reloaded(Changes(("a",), ("b",), ("c",)), restarted=True, warnings=("w",))
    response = await front.post("/v1/reload", {"restart_engine": True, "drain": False, "reason": "new port"})
    assert response.status == 202
    answer = parsed(response)
    came_to = {"live": ["a"], "engine": ["b"], "daemon": ["c"], "dry_run": False, "restarted": True, "warnings": ["w"]}
    assert answer.pop("reload") == came_to
    assert answer == front.house.supervisor.status()
    assert front.reloads == [ReloadAsked(restart=True, drain=False)]
    await front.house.a_moment()
    (note,) = front.house.observer.noticed("control_request")
    assert note.fields == {"verb": "reload", "uid": 1000, "pid": 42, "reason": "new port"}


async def test_a_dry_run_is_no_change(front: Front) -> None:
    """200, and nothing about it in the events."""
    assert (await front.post("/v1/reload", {"dry_run": True, "values": {"engine.vllm.port": "x"}})).status == 200
    assert front.reloads == [ReloadAsked(dry_run=True, values={"engine.vllm.port": "x"})]
    await front.house.a_moment()
    assert front.house.observer.order == []


async def test_a_refused_reload_says_why(front: Front) -> None:
    """409: every line of what is wrong with the file, or that the moment is wrong."""
    front.reload_is = ConfigError((Problem("f:1", "a", "is bad", "mend it"), Problem("f:2", "b", "is too", "and it")))
    response = await front.post("/v1/reload")
    assert (response.status, code(response)) == (409, "bad_configuration")
    assert parsed(response)["error"]["message"] == "f:1: a: is bad; mend it\nf:2: b: is too; and it"  # type: ignore[index]
    front.reload_is = ReloadRefusedError("the daemon is ending")
    response = await front.post("/v1/reload")
    assert (response.status, code(response)) == (409, "conflict")


@pytest.mark.parametrize(
    "sent",
    [
        {"restart_engine": "yes"},
        {"dry_run": 1},
        {"values": {}},
        {"dry_run": True, "values": []},
        {"dry_run": True, "values": {"a": 1}},
        {"restart": True},
        {"reason": 5},
    ],
    ids=repr,
)
async def test_a_reload_that_makes_no_sense(front: Front, sent: object) -> None:
    """400, and nothing is read."""
    response = await front.post("/v1/reload", sent)
    assert (response.status, code(response)) == (400, "bad_request")
    assert front.reloads == []
