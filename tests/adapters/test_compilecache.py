"""The compile cache of one model, found by the engine's own words and moved aside."""

from pathlib import Path

import pytest

from vllm_supervisor.adapters.compilecache import TorchCompileCache

pytestmark = pytest.mark.asyncio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "vllm"
    for name in ("aaaa/rank_0_0/backbone", "bbbb/rank_0_0", "torch_aot_compile/cccc/rank_0_0"):
        (root / "torch_compile_cache" / name).mkdir(parents=True)
    return root


async def moved(root: Path, log: Path, text: str, start: int = 0) -> list[str]:
    """Return what is left of the cache after a move."""
    log.write_text(text)  # noqa: ASYNC240 -- nothing else runs
    cache = TorchCompileCache({"VLLM_CACHE_ROOT": str(root)}, str(log))
    targets = await cache.move_aside(start)
    assert all(Path(target).is_dir() for target in targets)  # noqa: ASYNC240 -- nothing else runs
    assert all(Path(target).parent == root / "torch_compile_cache.aside" for target in targets)
    return left(root)


def left(root: Path) -> list[str]:
    """Return the caches that are still in use, by their hash."""
    return sorted(path.name for path in (root / "torch_compile_cache").rglob("????") if path.is_dir())


async def test_named_by_the_log(root: Path, tmp_path: Path) -> None:
    """As vLLM 0.32 logs it: only this model's folder goes, and all its ranks with it."""
    line = f"INFO Using cache directory: {root}/torch_compile_cache/aaaa/rank_0_0/backbone for vLLM's torch.compile\n"
    assert await moved(root, tmp_path / "log", line) == ["bbbb", "cccc"]


async def test_ahead_of_time(root: Path, tmp_path: Path) -> None:
    """What was compiled ahead of time lies one folder deeper."""
    line = f"Directly load AOT compilation from path {root}/torch_compile_cache/torch_aot_compile/cccc/rank_0_0/model\n"
    assert await moved(root, tmp_path / "log", line) == ["aaaa", "bbbb"]


async def test_only_this_generation_counts(root: Path, tmp_path: Path) -> None:
    """A line before the launch is another engine's."""
    old = f"Using cache directory: {root}/torch_compile_cache/aaaa/rank_0_0 for vLLM's torch.compile\n"
    new = old.replace("aaaa", "bbbb")
    assert await moved(root, tmp_path / "log", old + new, len(old)) == ["aaaa", "cccc"]


async def test_nothing_outside_the_cache(root: Path, tmp_path: Path) -> None:
    """Whatever a log says, only what is in the cache is moved; not named, all of it."""
    precious = tmp_path / "precious"
    precious.mkdir()
    line = (
        f"Using cache directory: {precious} for vLLM's torch.compile\n"
        f"Using cache directory: {root}/torch_compile_cache/../../precious/x for vLLM's torch.compile\n"
    )
    (tmp_path / "log").write_text(line)
    await TorchCompileCache({"VLLM_CACHE_ROOT": str(root)}, str(tmp_path / "log")).move_aside(0)
    assert precious.is_dir()
    assert not (root / "torch_compile_cache").exists()


async def test_nothing_to_move(tmp_path: Path) -> None:
    """No cache, no log: nothing is done."""
    cache = TorchCompileCache({"HOME": str(tmp_path)}, str(tmp_path / "log"))
    assert await cache.move_aside(0) == ()
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 -- nothing else runs


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"VLLM_CACHE_ROOT": "~/vllm"}, id="a tilde, which vLLM expands"),
        pytest.param({"XDG_CACHE_HOME": "HOME"}, id="XDG_CACHE_HOME"),
    ],
)
async def test_where_the_cache_is(root: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """By the engine's environment, as vLLM finds it."""
    given = {name: value.replace("HOME", str(tmp_path)) for name, value in env.items()} | {"HOME": str(tmp_path)}
    targets = await TorchCompileCache(given, "/nonexistent").move_aside(0)
    assert len(targets) == 1


async def test_named_by_the_journal(root: Path) -> None:
    """Where the log is no file, its part is read in pieces, wherever they are cut."""
    line = f"INFO Using cache directory: {root}/torch_compile_cache/aaaa/rank_0_0/backbone for vLLM's\n".encode()
    cache = TorchCompileCache({"VLLM_CACHE_ROOT": str(root)}, "journal", lambda _: [line[:40], line[40:]])
    await cache.move_aside(1)
    assert left(root) == ["bbbb", "cccc"]
