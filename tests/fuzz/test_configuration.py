"""Whatever stands in a configuration: a plan, or problems that a user can read. Nothing else, ever."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.logs import SOME
from vllm_supervisor.config.load import load
from vllm_supervisor.config.plan import decode, encode
from vllm_supervisor.config.reader import make_plan
from vllm_supervisor.config.schema import KEYS, Shape
from vllm_supervisor.errors import ConfigError, Problem

HOME = {"HOME": "/home/u", "PATH": "/usr/bin:/bin", "RUNTIME_DIRECTORY": "/run/vs"}
ODD = (
    "", " ", "0", "-1", "1e400", "nan", "inf", "9" * 400, "9" * 5000, "1 GB", "1e400 GB", "9" * 400 + " GiB", "²", "٣",
    "0660", "0o9", "true", "null", "'", '"', "a\0b", "a\nb", "\ud800", "x" * 300, "*KEY*", "journal", "root",
    "${X}", "${X:-${Y:-z}}", "${credential:../x}", "$$", "~nobody/x", "~", "/", "/dev/null", "/dev/full/x",
    "[::1]", "::", "0.0.0.0", "99999999999", '{"name": ' + "[" * 3000,
    "--port=1", "--config", "--config=/dev/null", "--served-model-name", "--lora-modules",
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(ODD), st.text(max_size=12))
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ODD, "a", "name"]), inner, max_size=3)
    ),
    max_leaves=6,
)
LOCATIONS = sorted(key for key in KEYS if key)
LEAVES = sorted(key for key in LOCATIONS if KEYS[key].shape is not Shape.SECTION)
CHANGES = st.dictionaries(st.sampled_from(LOCATIONS), VALUES, max_size=4)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "config.yaml"


def read(path: Path, raw: bytes, *sets: str, **environ: str) -> None:
    """Read as the daemon does, up to the plan that it gets; what is refused is refused in lines."""
    path.write_bytes(raw)
    surroundings = {**HOME, "HOME": str(path.parent), **environ}
    problems: tuple[Problem, ...] = ()
    try:
        plan = make_plan(load(path, sets=sets, environ=surroundings), surroundings)
    except ConfigError as error:
        problems = error.problems or (Problem("", "", "", ""),)
    else:
        assert decode(json.loads(json.dumps(encode(plan)))) == plan
    for problem in problems:
        assert str(problem).isprintable()
        assert problem.why
        assert problem.remedy


def with_changes(changes: dict[tuple[str, ...], object]) -> bytes:
    """Return a good configuration with other values at some of its keys."""
    tree: dict[str, object] = {"engine": {"vllm": {"model": "m"}}}
    for loc, value in changes.items():
        node = tree
        for part in loc[:-1]:
            inner = node.get(part)
            node[part] = node = inner if isinstance(inner, dict) else {}
        node[loc[-1]] = value
    return yaml.dump(tree, allow_unicode=True).encode(errors="surrogatepass")


@SOME
@given(st.binary(max_size=200) | st.text(max_size=120).map(lambda text: text.encode(errors="surrogatepass")))
@example(b"\xff\xfee\x00n\x00")
@example(b"engine: {vllm: {model: m, timeout: 1" + b"0" * 5000 + b"}}")
def test_any_bytes(file: Path, raw: bytes) -> None:
    """A file may hold anything."""
    read(file, raw)


@SOME
@given(CHANGES)
@example({("engine", "vllm", "log", "max_bytes"): "9" * 400 + " GiB"})
@example({("metrics", "port"): "9" * 5000})
@example({("engine", "vllm", "extra_args"): ["--lora-modules", '{"name": ' + "[" * 3000]})
def test_any_value_at_any_key(file: Path, changes: dict[tuple[str, ...], object]) -> None:
    """Whatever type or size, at keys that are known."""
    read(file, with_changes(changes))


@SOME
@given(key=st.sampled_from(LEAVES), value=st.sampled_from(ODD) | st.text(max_size=20), junk=st.text(max_size=20))
def test_any_value_from_the_command_line_and_the_environment(
    file: Path, key: tuple[str, ...], value: str, junk: str
) -> None:
    """The other two sources, with keys that are none as well."""
    good = with_changes({})
    read(file, good, f"{'.'.join(key)}={value}", junk)
    variable = "VLLM_SUPERVISOR__" + "__".join(key).upper()
    read(file, good, **{variable: value.replace("\0", "")})
    read(file, good, **{f"VLLM_SUPERVISOR__{junk}".replace("\0", "").replace("=", ""): value.replace("\0", "")})
