"""What the daemon makes of an end that nobody asked for: cause, decision, evidence, and what it clears away."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.daemon.conftest import real_vllm
from tests.rig import Rig

Make = Callable[..., Rig]

BAD_FLAG = """\
usage: vllm [-h] [-v] {chat,complete,serve,bench,collect-env,run-batch} ...
vllm: error: unrecognized arguments: --no-such-flag
"""
RATE_LIMIT = """\
(APIServer pid=7) INFO 05-01 10:00:00 [api_server.py:1] vLLM API server version 0.32.0
Traceback (most recent call last):
  File "/x/huggingface_hub/utils/_http.py", line 409, in hf_raise_for_status
    response.raise_for_status()
huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/m
"""
COMPILE = """\
(APIServer pid=7) INFO 05-01 10:00:00 [api_server.py:1] vLLM API server version 0.32.0
(EngineCore pid=8) INFO 05-01 10:00:01 [backends.py:1105] Using cache directory: {cache}/aaaa/rank_0_0/backbone \
for vLLM's torch.compile
(EngineCore pid=8) RuntimeError: vLLM failed to compile the model. The most likely reason for this is that a previous \
compilation failed, leading to a corrupted compilation artifact.
"""
DIED = """\
(EngineCore pid=8) ERROR 05-01 10:00:09 [core.py:1] EngineCore encountered a fatal error.
(EngineCore pid=8) ERROR 05-01 10:00:09 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.
"""
SOON = {"min_backoff": 0.05, "max_backoff": 0.1}


def replay(rig: Rig, text: str, code: int = 1, **knobs: object) -> None:
    """Have the next starts print `text` and exit with `code`."""
    path = rig.folder / "replayed.log"
    path.write_text(text)
    rig.simulate(replay=path, exit_code=code, **knobs)


def bundle(status: dict[str, Any]) -> Path:
    path = status["last_exit"]["bundle"]
    assert isinstance(path, str)
    return Path(path)


def diagnosed(rig: Rig, status: dict[str, Any], cls: str) -> dict[str, Any]:
    """Return the diagnosis in the status, which is also in events, log and metrics."""
    diagnosis: dict[str, Any] = status["last_exit"]["diagnosis"]
    assert diagnosis["class"] == cls
    event = rig.events("engine_diagnosed")[-1]
    assert {name: event[name] for name in diagnosis} == diagnosis
    assert f'"class": "{cls}"' in rig.daemon_log()
    assert rig.metric(f'vllm_supervisor_engine_exits_total{{class="{cls}"}}') >= 1
    return diagnosis


def test_what_cannot_succeed_is_not_tried_again(pliable: Make) -> None:
    """One start, `failed` at once, and the remedy wherever one looks; a start tries anew; the evidence is kept."""
    rig = pliable({"restart": SOON})
    replay(rig, BAD_FLAG, 2)
    rig.start()
    status = rig.wait_state("failed")
    diagnosis = diagnosed(rig, status, "bad_cli_argument")
    assert (diagnosis["retry"], diagnosis["line"] is not None) == ("permanent", True)
    assert "--no-such-flag" in diagnosis["evidence"]
    assert "`extra_args`" in diagnosis["action"]
    assert diagnosis["action"] in status["fail_why"]
    assert diagnosis["action"] in status["phase"]["detail"]
    assert diagnosis["action"] in rig.cli("status").stdout
    assert (status["generation"], status["last_exit"]["code"]) == (1, 2)
    assert rig.metric("vllm_supervisor_starts_total") == 1
    assert rig.cli("wait", "--timeout", "5").returncode == 5

    folder = bundle(status)
    assert folder.parent == rig.state_dir / "crashes"
    assert json.loads((folder / "diagnosis.json").read_text()) == diagnosis
    assert (folder / "vllm.log").read_text().endswith("--no-such-flag\n")
    assert rig.events("bundle_written")[-1]["path"] == str(folder)
    assert str(folder) in rig.cli("status").stdout

    rig.post("start")
    assert rig.wait_state("failed", after=1)["generation"] == 2
    rig.simulate()
    rig.post("start")
    rig.wait_state("ready", after=2)


def test_a_configuration_that_was_ready_here_is_given_more_tries(pliable: Make) -> None:
    """Also by a later daemon; another configuration, or a damaged file, is judged as at first."""
    rig = pliable({"restart": SOON | {"never_ready_limit": 2}})
    rig.start()
    rig.wait_state("ready")
    proven = rig.state_dir / "proven.json"
    rig.until(proven.exists, what="the configuration is noted as proven")
    rig.stop()
    replay(rig, BAD_FLAG, 2)
    rig.start()
    status = rig.wait_state("failed")
    assert "2 starts in a row never got ready" in status["fail_why"]
    assert "ready on this host before" in status["last_exit"]["retry_why"]
    assert "`extra_args`" in status["fail_why"]
    assert rig.metric("vllm_supervisor_starts_total") == 2
    rig.stop()

    rig.config["engine"]["vllm"]["extra_args"] = ["--max-model-len", "512"]
    rig.start()
    rig.wait_state("failed")
    assert rig.metric("vllm_supervisor_starts_total") == 1
    rig.stop()

    del rig.config["engine"]["vllm"]["extra_args"]
    proven.write_text("{")
    rig.start()
    rig.wait_state("failed")
    assert rig.metric("vllm_supervisor_starts_total") == 1
    (event,) = rig.events("state_file_damaged")
    assert (event["path"], event["kept"]) == (str(proven), f"{proven}.damaged")
    assert Path(event["kept"]).read_text() == "{"


def test_what_passes_by_itself_is_tried_without_end(pliable: Make) -> None:
    """A rate limit at the hub never leads to `failed`, whatever never_ready_limit says."""
    rig = pliable({"restart": SOON | {"never_ready_limit": 1}})
    replay(rig, RATE_LIMIT)
    rig.start()

    def examined() -> dict[str, Any] | None:
        """Return a status whose last end was examined: the one of this moment may still be."""
        status = rig.status()
        return status if status["generation"] > 4 and status["last_exit"]["diagnosis"] else None

    diagnosed(rig, rig.until(examined, what="four starts that failed"), "hf_rate_limit")
    assert "failed" not in [event["after"] for event in rig.events("phase_changed")]
    rig.simulate()
    rig.wait_state("ready")


def test_a_cause_that_nobody_knows(pliable: Make) -> None:
    """It counts towards never_ready_limit, under the class unknown, and its evidence is kept all the same."""
    rig = pliable({"restart": SOON | {"never_ready_limit": 2}})
    replay(rig, "nothing that anybody has seen before\n", 7)
    rig.start()
    status = rig.wait_state("failed")
    assert status["generation"] == 2
    assert status["last_exit"]["diagnosis"] is None
    assert f"the end of {rig.log} and the evidence in {bundle(status)}" in status["fail_why"]
    assert rig.metric('vllm_supervisor_engine_exits_total{class="unknown"}') == 2
    assert (bundle(status) / "vllm.log").read_text().count("nothing that anybody") == 1
    assert len(list((rig.state_dir / "crashes").iterdir())) == 2


def test_the_daemon_ends_where_it_is_told_to(pliable: Make) -> None:
    """restart.exit_when_failed: status 10 after one start, and the last words name the remedy."""
    rig = pliable({"restart": SOON | {"exit_when_failed": True}})
    replay(rig, BAD_FLAG, 2)
    rig.start(wait=False)
    assert rig.wait_exit() == 10
    assert "`extra_args`" in rig.daemon_log()


def test_no_secret_in_anything_that_is_kept(pliable: Make) -> None:
    """Keys that vLLM itself wrote to its log, and those in its command and environment, reach nothing of ours."""
    secrets = {"api": uuid.uuid4().hex, "hub": uuid.uuid4().hex, "flag": uuid.uuid4().hex}
    rig = pliable(
        {
            "restart": SOON,
            "api_key": secrets["api"],
            "env": {"HF_TOKEN": secrets["hub"]},
            "extra_args": ["--hf-token", secrets["flag"]],
        }
    )
    quoted = " ".join(f"{name}={value}" for name, value in secrets.items())
    replay(rig, f"non-default args: {quoted}\nvllm: error: unrecognized arguments: --{secrets['hub']} {quoted}\n", 2)
    rig.start()
    status = rig.wait_state("failed")
    _, events = rig.request("GET", "/v1/events")
    texts = {"status": json.dumps(status), "events": events.decode(), "log": rig.daemon_log()}
    texts |= {path.name: path.read_text() for path in bundle(status).iterdir()}
    assert {"report.json", "diagnosis.json", "launch.json", "events.jsonl", "vllm.log"} <= texts.keys()
    leaks = [(name, secret) for name, text in texts.items() for secret, value in secrets.items() if value in text]
    assert leaks == []
    assert "***" in texts["vllm.log"]
    assert json.loads(texts["launch.json"])["env"]["HF_TOKEN"] == "***"


ECHOES = """\
INFO [api.py:1] args: Namespace(host='0.0.0.0', api_key='LEAK01a', hf_token='LEAK02b', ssl_keyfile_password='LEAK03c')
(APIServer pid=1) INFO [utils.py:233] non-default args: {'model': 'x', 'api_key': ['LEAK04d', 'LEAK05e']}
curl -H "Authorization: Bearer LEAK06ffff" http://x
Authorization: Basic TEVBSzA3
proxy http://user:LEAK08h@proxy:3128 and user:LEAK09i@proxy
export AWS_SECRET_ACCESS_KEY=LEAK10j
AWS_SECRET_ACCESS_KEY: LEAK11k
https://bucket.example/w?X-Amz-Signature=LEAK12l and https://cdn.example/x?sig=LEAK13m
{"headers": {"authorization": "Bearer LEAK14nnn", "x-api-key": "LEAK15o"}}
hf_LEAK16abcdefghijklmnopqrstuvwxyz is the token of --api-key LEAK17q --hf-token=LEAK18r
-----BEGIN PRIVATE KEY-----
(EngineCore pid=8) LEAK19MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj
-----END PRIVATE KEY-----
eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJMRUFLIn0.LEAK20abcdefabcdefabcdef
loader says LEAK21json, LEAK22%2Fin%2Ba%3Durl, max_tokens=100
vllm: error: unrecognized arguments: --no-such-flag api_key='LEAK23w' LEAK21json
"""


def test_no_secret_that_only_the_log_knows(pliable: Make) -> None:
    """What vLLM prints of keys that no configuration named, and what it echoes of those inside its arguments."""
    loader = {"aws_secret_access_key": "LEAK21json", "password": "LEAK22/in+a=url"}
    rig = pliable({"restart": SOON, "extra_args": ["--model-loader-extra-config", json.dumps(loader)]})
    replay(rig, ECHOES, 2)
    rig.start()
    status = rig.wait_state("failed")
    _, events = rig.request("GET", "/v1/events")
    texts = {"status": json.dumps(status), "events": events.decode(), "log": rig.daemon_log()}
    texts |= {str(path): path.read_text() for path in bundle(status).rglob("*") if path.is_file()}
    leaks = [f"{name}: {line}" for name, text in texts.items() for line in text.splitlines() if "LEAK" in line]
    assert leaks == []
    assert "TEVBSzA3" not in "".join(texts.values())
    assert status["last_exit"]["diagnosis"]["evidence"].endswith("***")
    assert "max_tokens=100" in texts[str(bundle(status) / "vllm.log")]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Put a file system without room at a path; where that needs root, a file is in the way instead."""
    mounted: list[Path] = []

    def fill(path: Path) -> None:
        path.mkdir(parents=True)
        mount = shutil.which("mount")
        command = [str(mount), "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(path)]
        if mount is None or os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            path.rmdir()
            path.write_text("in the way")
        else:
            mounted.append(path)

    yield fill
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_loses_the_bundle_and_not_the_restart(pliable: Make, small_disk: Callable[[Path], None]) -> None:
    """The end is diagnosed, the next engine serves, and the loss is told."""
    rig = pliable({"restart": SOON})
    small_disk(rig.state_dir / "crashes")
    replay(rig, RATE_LIMIT, fault_starts=1, state_dir=rig.folder / "sim")
    rig.start()
    status = rig.wait_state("ready", after=1)
    diagnosed(rig, status, "hf_rate_limit")
    assert status["last_exit"]["bundle"] is None
    assert str(rig.state_dir / "crashes") in status["last_exit"]["bundle_lost"]
    assert "evidence   not kept: " in rig.cli("status").stdout
    (event,) = rig.events("bundle_not_written")
    assert str(rig.state_dir / "crashes") in event["why"]


def test_a_hang_is_photographed_before_it_is_ended(pliable: Make) -> None:
    """The bundle shows what each process was doing while it hung, and the status says that it hung."""
    rig = pliable({"liveness": {"interval": 0.5, "timeout": 1.5}, "restart": SOON})
    rig.simulate(freeze_after=3, fault_starts=1, state_dir=rig.folder / "sim")
    rig.start()
    status = rig.wait_state("ready", after=1, within=60)
    assert status["restarts"]["by_reason"]["hang"] == 1
    diagnosis = diagnosed(rig, status, "hang_health_ok")
    assert "a canary" in diagnosis["evidence"]
    assert "no counter and no gauge of the engine moved for" in diagnosis["evidence"]
    assert diagnosis["evidence"] == status["last_exit"]["detail"]
    folder = bundle(status)
    processes = json.loads((folder / "processes.json").read_text())
    assert {"vllm", "VLLM::EngineCor"} <= {process["name"] for process in processes}
    assert all(process["threads"] for process in processes)
    assert json.loads((folder / "photograph.json").read_text())["cause"] == "hang"
    assert json.loads((folder / "report.json").read_text())["was_ready"] is True


def test_a_crash_shows_who_was_there(pliable: Make) -> None:
    """Killed as a user kills it, members outlive the leader: the bundle has each one's state and the dead leader's."""
    rig = pliable({"restart": SOON, "api_key": "a-key-that-nobody-sees"})
    rig.start()
    rig.wait_state("ready")
    before = {member.pid for member in rig.members()}
    os.kill(rig.leader(), signal.SIGKILL)
    status = rig.wait_state("ready", after=1)
    folder = bundle(status)
    rows = json.loads((folder / "processes.json").read_text())
    assert before <= {row["pid"] for row in rows}
    states = {row["name"]: row["state"] for row in rows}
    assert (states["vllm"], len(states) > 1) == ("Z", True)
    report = json.loads((folder / "report.json").read_text())
    assert {row["seen_at"] for row in report["members"]} <= {row["seen_at"] for row in rows}
    assert report["members"][0]["seen_at"][:4] >= "2024"


def test_an_end_that_no_daemon_saw(pliable: Make) -> None:
    """Daemon killed, then the engine dies of something: the next daemon says of what, from the log of that start."""
    rig = pliable({"restart": SOON})
    rig.start()
    rig.wait_state("ready")
    members = rig.members()
    rig.send(signal.SIGKILL)
    rig.wait_exit()
    with rig.log.open("a") as log:
        log.write(DIED)
    for member in members:
        member.kill()
    psutil.wait_procs(members, 20)
    rig.start()
    status = rig.wait_state("ready")
    assert status["generation"] == 2
    diagnosed(rig, status, "oom_runtime")
    assert (status["last_exit"]["code"], status["last_exit"]["reason"]) == (None, "leftover")
    report = json.loads((bundle(status) / "report.json").read_text())
    assert (report["generation"], report["cause"]) == (1, "leftover")
    assert "nobody saw how" in rig.cli("status").stdout
    rig.stop()
    rig.start()
    assert rig.wait_state("ready")["last_exit"] is None


MAPPER = """
import mmap, sys, time
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    held = mmap.mmap(file.fileno(), 4096)
    open(sys.argv[2], "w").close()
    time.sleep(300)
"""


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
def test_what_a_killed_engine_leaves_is_removed(pliable: Make) -> None:
    """Shared memory that its members had mapped, and the folder of its sockets; a stranger's stays."""
    # Members are looked at once a second while starting, and at readiness.
    rig = pliable({"restart": SOON, "env": {"SIM_LOAD_SECONDS": "2.5"}})
    ours, foreign = (Path("/dev/shm", f"psm_{uuid.uuid4().hex[:12]}") for _ in range(2))
    mapper = rig.folder / "mapper.py"
    mapper.write_text(MAPPER)
    # Mapped before the engine loads, as vLLM's rings are.
    mapped = rig.folder / "mapped"
    rig.config["engine"]["vllm"]["launcher"] = rig.launch_script(
        f"rm -f {mapped}; {sys.executable} {mapper} {ours} {mapped} & "
        f'while [ ! -e {mapped} ]; do sleep 0.05; done; exec "$@"'
    )
    stranger = subprocess.Popen([sys.executable, str(mapper), str(foreign), str(rig.folder / "stranger")])
    try:
        rig.start()
        rig.wait_state("ready")
        leader = psutil.Process(rig.leader())
        sockets = Path(leader.environ()["VLLM_RPC_BASE_PATH"])
        assert sockets.is_dir()
        (sockets / str(uuid.uuid4())).touch()
        assert mapped_by_members(rig, ours)
        rig.post("restart")
        rig.wait_state("ready", after=1)
        os.kill(rig.leader(), signal.SIGKILL)
        rig.wait_state("ready", after=2)
        rig.post("stop")
        rig.wait_state("stopped")
        assert not ours.exists()
        assert not sockets.exists()
        assert foreign.exists()
        assert str(ours) in rig.events("remains_removed")[-1]["files"]
    finally:
        stranger.kill()
        stranger.wait(10)
        for path in (ours, foreign):
            path.unlink(missing_ok=True)


def mapped_by_members(rig: Rig, path: Path) -> bool:
    return any(str(path) in Path(f"/proc/{member.pid}/maps").read_text() for member in rig.members())


def test_a_damaged_compile_cache_is_moved_aside(pliable: Make, tmp_path: Path) -> None:
    """Before the second start, this model's alone, once; and then the start counts like another."""
    root = tmp_path / "cache"
    for name in ("aaaa", "bbbb"):
        (root / "torch_compile_cache" / name / "rank_0_0").mkdir(parents=True)
    rig = pliable({"restart": SOON | {"never_ready_limit": 3}, "env": {"VLLM_CACHE_ROOT": str(root)}})
    replay(rig, COMPILE.format(cache=root / "torch_compile_cache"))
    rig.start()
    status = rig.wait_state("failed")
    diagnosed(rig, status, "torch_compile_failure")
    assert status["generation"] == 3
    (event,) = rig.events("compile_cache_moved")
    assert [Path(moved).name.partition("-")[0] for moved in event["to"]] == ["aaaa"]
    assert [path.name for path in (root / "torch_compile_cache").iterdir()] == ["bbbb"]
    assert f"moved aside to {event['to'][0]} before" in status["fail_why"]


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arguments", "code", "cls", "remedy"),
    [
        pytest.param(["--no-such-flag"], 2, "bad_cli_argument", "`extra_args`", id="a flag it does not know"),
        pytest.param(
            ["--max-model-len", "999999"], 1, "max_model_len_error", "--max-model-len", id="a length too long"
        ),
    ],
)
def test_on_real_vllm(make_rig: Make, arguments: list[str], code: int, cls: str, remedy: str) -> None:
    """What real vLLM says of a wrong configuration is understood, and it is not started a second time."""
    kit = real_vllm()
    section = dict(kit.section)
    base = [*section["extra_args"]]
    if arguments[0] in base:
        del base[base.index(arguments[0]) : base.index(arguments[0]) + 2]
    rig = make_rig(section | {"extra_args": [*base, *arguments]})
    rig.start()
    status = rig.wait_state("failed", within=kit.ready_within)
    diagnosis = diagnosed(rig, status, cls)
    assert diagnosis["retry"] == "permanent"
    assert remedy in diagnosis["action"]
    assert remedy in status["fail_why"]
    assert (status["generation"], status["last_exit"]["code"]) == (1, code)
    assert (bundle(status) / "vllm.log").stat().st_size > 0


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_shared_memory_of_real_vllm(make_rig: Make) -> None:
    """The rings and semaphores of a real engine whose leader was killed are gone with it, and so are its sockets."""
    kit = real_vllm()
    section = dict(kit.section) | {"restart": {"enabled": False}}
    rig = make_rig(section | {"extra_args": [*section["extra_args"], "--distributed-executor-backend", "mp"]})
    rig.start()
    rig.wait_state("ready", within=kit.ready_within)
    rings = {
        Path(line.split()[5])
        for member in rig.members()
        for line in Path(f"/proc/{member.pid}/maps").read_text().splitlines()
        if "/dev/shm/psm_" in line and "(deleted)" not in line
    }
    assert rings
    sockets = Path(psutil.Process(rig.leader()).environ()["VLLM_RPC_BASE_PATH"])
    assert list(sockets.iterdir())
    os.kill(rig.leader(), signal.SIGKILL)
    status = rig.wait_state("failed", within=60)
    rows = json.loads((bundle(status) / "processes.json").read_text())
    states = {row["name"]: row["state"] for row in rows}
    assert states["vllm"] == "Z"
    assert {"VLLM::EngineCor", "VLLM::Worker"} <= states.keys(), "who outlives the leader is photographed"
    assert {"S", "R", "D", "t"} >= {states["VLLM::EngineCor"], states["VLLM::Worker"]}
    print(*(f"{row['name']} {row['state']} {row['wchan']} {row['command']!r}" for row in rows), sep="\n")
    assert [path for path in rings if path.exists()] == []
    assert not sockets.exists()
