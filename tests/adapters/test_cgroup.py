"""The OOM counter, on recorded layouts of both versions of cgroups."""

from pathlib import Path

import pytest

from vllm_supervisor.adapters.cgroup import CgroupOomCounter

V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"
V1_OLD = "oom_kill_disable 0\nunder_oom 0\n"
SERVICE = "system.slice/vllm-supervisor.service"


@pytest.mark.parametrize(
    ("membership", "files", "count"),
    [
        pytest.param(f"0::/{SERVICE}\n", {f"{SERVICE}/memory.events": V2}, 2, id="v2, a unit of systemd"),
        pytest.param("0::/\n", {"memory.events": V2}, 2, id="v2, the root of a container's namespace"),
        pytest.param("0::/../kubepods/pod1\n", {"memory.events": V2}, 2, id="v2, a path of the host"),
        pytest.param(
            f"8:pids:/{SERVICE}\n4:memory:/{SERVICE}\n0::/\n",
            {f"memory/{SERVICE}/memory.oom_control": V1, "memory/memory.oom_control": V1_OLD},
            5,
            id="v1, a unit of systemd",
        ),
        pytest.param("4:memory:/docker/abc\n", {"memory/memory.oom_control": V1}, 5, id="v1 in a container"),
        pytest.param("4:cpu,memory:/\n0::/\n", {"memory/memory.oom_control": V1}, 5, id="v1, controllers together"),
        pytest.param("4:memory:/\n", {"memory/memory.oom_control": V1_OLD}, None, id="v1 before Linux 4.13"),
        pytest.param("0::/\n", {}, None, id="v2 without the memory controller"),
        pytest.param(None, {}, None, id="no cgroups at all"),
        pytest.param("nonsense\n\n", {"memory.events": V2}, None, id="nonsense"),
    ],
)
def test_count(tmp_path: Path, membership: str | None, files: dict[str, str], count: int | None) -> None:
    """The count of our own cgroup, None where there is none."""
    mounts = tmp_path / "cgroup"
    mounts.mkdir()
    for name, text in files.items():
        (mounts / name).parent.mkdir(parents=True, exist_ok=True)
        (mounts / name).write_text(text)
    if membership is not None:
        (tmp_path / "self").write_text(membership)
    assert CgroupOomCounter(mounts, tmp_path / "self").count() == count


@pytest.mark.asyncio
async def test_on_this_host() -> None:
    """Whatever this host has, it is read without complaint."""
    count = await CgroupOomCounter().read()
    assert count is None or count >= 0
