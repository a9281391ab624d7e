"""vLLM's own flags, in all their spellings."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given, strategies

from vllm_supervisor.config.vllm_args import VllmArgs, read
from vllm_supervisor.config.yamlfile import Document, parse
from vllm_supervisor.config.yamlfile import read as read_file


def no_file(name: str) -> Document:
    return parse("", name)


def reading(text: str, config: str = "") -> VllmArgs:
    return read(shlex.split(text), lambda name: parse(config, name), grace=30)


@pytest.mark.parametrize(
    "text",
    [
        "--port 9000",
        "--port=9000",
        "--por 9000",
        "--host 0.0.0.0",
        "--ho=0.0.0.0",
        "--po 9000",
        "--api-key k",
        "--api_key k",
        "--api_key=k",
        "--api-key k1 k2",
        "--model other",
        "--uds /tmp/s",
        "--headless",
        "--grpc",
        "--ssl-cert-reqs 2",
        "--ssl_cert_reqs=2",
        "--config c.yaml",
        "--tensor-parallel-size banana",
        "--served-model-name --seed 1",
        "--served-model-name=",
        "--served-model-name",
        "-tp=0",
        "-pp -1",
        "--data_parallel_size",
    ],
)
def test_flags_that_are_refused(text: str) -> None:
    """What the supervisor sets itself, what it cannot supervise, and what is no number of GPUs, in every spelling."""
    (remark,) = reading(f"--seed 7 {text}", config="port: 1").remarks
    assert remark.fatal
    assert remark.index == 2


@pytest.mark.parametrize(
    "text",
    [
        "--portable x",
        "--h",
        "--hostname h",
        "--api-key-file f",
        "--api-server-count 2",
        "--model-impl vllm",
        "--ssl-cert-reqs 1",
        "--max-model-len -1",
        "-tp 2 -pp=1 -x 0",
        "--chat-template '--port {{ x }}'",
        "-- --port 1",
        "--no-headless",
        "--uds-something",
    ],
)
def test_flags_that_only_look_like_them_are_left_alone(text: str) -> None:
    """A longer name is another flag, and a value is no flag."""
    assert reading(text).remarks == ()


def test_an_api_key_is_not_repeated() -> None:
    """The refusal of a key does not show it."""
    assert "very-secret" not in str(reading("--api-key very-secret"))


@pytest.mark.parametrize(
    ("text", "config", "served"),
    [
        ("", "", ()),
        ("--served-model-name a b --seed 1", "", ("a", "b")),
        ("--served_model_name=a", "", ("a",)),
        ("--served-model-name a --served-model-name b", "", ("b",)),
        ("--config c.yaml", "served-model-name: [x, y]", ("x", "y")),
        ("--config c.yaml", "served_model_name: x", ("x",)),
        ("--served-model-name a --config c.yaml", "served-model-name: x", ("a",)),
    ],
)
def test_served_names(text: str, config: str, served: tuple[str, ...]) -> None:
    """All values count, the last flag wins, and the command line wins over the file whatever the order."""
    assert reading(text, config).served_names == served


def test_lora_names_in_both_notations() -> None:
    """`name=path` and JSON objects, several after one flag."""
    text = """--lora-modules a=/p '{"name": "b", "path": "/q"}' '[{"name": "c"}]' 'broken{' '{"name": 1}'"""
    assert reading(text).lora_names >= {"a", "b", "c"}


def test_tls_and_revision() -> None:
    """A certificate makes the probes speak https; the revision is told to clients."""
    read_both = reading("--ssl-certfile c.pem --ssl-keyfile k.pem --revision abc")
    assert (read_both.tls, read_both.revision) == (True, "abc")
    assert not reading("--ssl-keyfile k.pem").tls
    assert reading("--config c.yaml", "ssl-certfile: c.pem").tls


@pytest.mark.parametrize(
    ("text", "config", "warned"),
    [
        ("--disable-log-stats", "", True),
        ("--disable_log_stats", "", True),
        ("--disable-log-stats --no-disable-log-stats", "", False),
        ("--config c.yaml", "disable-log-stats: true", True),
        ("--config c.yaml", "disable-log-stats: false", False),
        ("--shutdown-timeout 30", "", True),
        ("--shutdown-timeout 29.5", "", False),
        ("--shutdown-timeout x", "", False),
    ],
)
def test_warnings(text: str, config: str, warned: bool) -> None:
    """What works against the supervisor is warned about, only where it is in effect."""
    remarks = reading(text, config).remarks
    assert [remark.fatal for remark in remarks] == ([False] if warned else [])


@pytest.mark.parametrize(("text", "config"), [("--config", ""), ("--config c.yaml", ""), ("--config c.yaml", "a: [")])
def test_a_config_file_that_cannot_be_read_is_told(text: str, config: str) -> None:
    """vLLM would refuse to start with it."""
    (remark,) = reading(text, config).remarks
    assert remark.fatal
    assert remark.why.startswith("--config")


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (None, "create it, make it readable, or name another one after --config"),
        ("", "write vLLM's flags in it, such as `seed: 7`, or remove --config"),
        ("- seed", "write vLLM's flags in it, such as `seed: 7`"),
        ("a: 1\na: 2", "keep one of them"),
    ],
)
def test_the_remedies_for_a_config_file_are_those_of_vllm_s(tmp_path: Path, content: str | None, remedy: str) -> None:
    """Our own options and keys would not help there."""
    if content is not None:
        (tmp_path / "c.yaml").write_text(content)
    (remark,) = read(["--config", "c.yaml"], lambda name: read_file(tmp_path / name)).remarks
    assert (remark.fatal, remark.remedy) == (True, remedy)


@given(strategies.lists(strategies.text(alphabet="-_=ahostpr. {}[]", max_size=10), max_size=6))
def test_any_arguments_are_read(args: list[str]) -> None:
    """Nothing in a list of words makes it raise."""
    read(args, no_file)
