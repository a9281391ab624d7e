"""The whole way from a file to settings or problems."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies

from vllm_supervisor.config import launch
from vllm_supervisor.config.load import Loaded, load
from vllm_supervisor.errors import ConfigError, ExitCode, Problem

ROOT = Path(__file__).parents[2]
HOME = {"HOME": "/home/u", "PATH": "/usr/bin:/bin", "RUNTIME_DIRECTORY": "/run/vs"}

WORKER = """\
resources: {max_concurrent_jobs: "${MAX_JOBS:-32}"}
engine:
  available: [vllm]
  vllm:
    launcher: [uv, run, vllm, serve]
    model: openai/gpt-oss-20b
    host: 127.0.0.1
    port: 8000
    extra_args: [--async-scheduling, --max-model-len, "100000"]
    env: {VLLM_USE_FLASHINFER_SAMPLER: "0", CUDA_HOME: /opt/cuda}
    model_aliases: {gpt-oss-20b: openai/gpt-oss-20b}
    health_path: /health
    log_file: ${VLLM_LOG_FILE:-~/.microdc/vllm.log}
    restart: {enabled: true, max_backoff: 60}
    concurrency: ${VLLM_CONCURRENCY:-32}
    api_key: NONE
    timeout: 600
"""

Load = Callable[..., Loaded]
Refused = Callable[..., list[str]]


@pytest.fixture
def loads(tmp_path: Path) -> Load:
    """Load a text, with the log in a folder of the test's own."""

    def run(text: str, *sets: str, environ: Mapping[str, str] | None = None) -> Loaded:
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return load(path, sets=sets, environ={**HOME, "HOME": str(tmp_path), **(environ or {})})

    return run


@pytest.fixture
def refused(loads: Load, tmp_path: Path) -> Refused:
    """Load a text that must be refused, and return the lines, with the file called FILE."""

    def run(text: str, *sets: str, environ: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            loads(text, *sets, environ=environ)
        assert caught.value.exit_code == ExitCode.BAD_CONFIG
        return str(caught.value).replace(str(tmp_path / "c.yaml"), "FILE").split("\n")

    return run


def vllm(body: str) -> str:
    """Return a configuration with a model and `body`, whose first line is the file's fourth."""
    return "engine:\n  vllm:\n    model: m\n" + "".join(f"    {line}\n" for line in body.split("\n"))


def test_the_worker_s_configuration_works_unchanged(loads: Load, tmp_path: Path) -> None:
    """Every key of the configuration that is replaced means what it meant, and nothing is warned about."""
    loaded = loads(WORKER)
    own = loaded.settings.engine.vllm
    assert loaded.warnings == ()
    assert own.launcher == ("uv", "run", "vllm", "serve")
    assert own.extra_args == ("--async-scheduling", "--max-model-len", "100000")
    assert own.log_file == f"{tmp_path}/.microdc/vllm.log"
    assert (own.restart.enabled, own.restart.min_backoff, own.restart.max_backoff) == (True, 1.0, 60.0)
    assert (own.api_key, own.timeout, own.concurrency, loaded.settings.concurrency) == (None, 600.0, 32, 32)
    spec = launch.engine_spec(loaded.settings)
    assert (spec.base_url, spec.model, spec.aliases) == (
        "http://127.0.0.1:8000",
        "openai/gpt-oss-20b",
        {"gpt-oss-20b": "openai/gpt-oss-20b"},
    )


def test_variables_reach_the_worker_s_configuration(loads: Load) -> None:
    """The references in it take numbers and paths from the environment; the lower concurrency wins, with a warning."""
    loaded = loads(WORKER, environ={"MAX_JOBS": "8", "VLLM_CONCURRENCY": "64", "VLLM_LOG_FILE": "/tmp/v.log"})
    assert loaded.settings.concurrency == 8
    assert loaded.settings.engine.vllm.log_file == "/tmp/v.log"
    (warning,) = loaded.warnings
    assert warning.endswith(
        "c.yaml:1: resources.max_concurrent_jobs: lowers the advertised concurrency from 64 to 8; "
        "raise it, or lower engine.vllm.concurrency"
    )


BAD = [
    pytest.param(
        "engine:\n  vllm:\n    port: 8000\n",
        "FILE:2: engine.vllm.model: is missing; give a model's name or folder, such as openai/gpt-oss-20b",
        id="missing model",
    ),
    pytest.param(
        "metrics: {port: 1}\n",
        "FILE:1: engine.vllm.model: is missing; give a model's name or folder, such as openai/gpt-oss-20b",
        id="no engine at all",
    ),
    pytest.param(
        vllm("prot: 8000"),
        "FILE:4: engine.vllm.prot: is not a known key; did you mean `port`?",
        id="unknown key",
    ),
    pytest.param(
        vllm("max_backoff: 5"),
        "FILE:4: engine.vllm.max_backoff: is not a known key; did you mean `engine.vllm.restart.max_backoff`?",
        id="known key in the wrong place",
    ),
    pytest.param(
        "model: m\nengine: {vllm: {model: m}}\n",
        "FILE:1: model: is not a known key; did you mean `engine.vllm.model`?",
        id="known key at the top",
    ),
    pytest.param(
        "engine: {vllm: {model: m}}\n_env_file: /etc/passwd\n",
        "FILE:2: _env_file: is not a known key; remove it; "
        "known here: engine, resources, control, metrics, logging, systemd, state_dir",
        id="a key that pydantic-settings would heed",
    ),
    pytest.param(
        vllm("port: eighty"),
        "FILE:4: engine.vllm.port: 'eighty' is not a whole number; give a port from 1 to 65535",
        id="wrong type",
    ),
    pytest.param(
        vllm("port: yes"),
        "FILE:4: engine.vllm.port: is true or false, not a number; give a port from 1 to 65535",
        id="a boolean is no number",
    ),
    pytest.param(
        vllm("port: 22:22"),
        "FILE:4: engine.vllm.port: '22:22' is not a whole number; give a port from 1 to 65535",
        id="a whole number to the base of 60",
    ),
    pytest.param(
        vllm("timeout: 1:00:00"),
        "FILE:4: engine.vllm.timeout: '1:00:00' is not a number; give seconds above 0",
        id="hours, minutes and seconds",
    ),
    pytest.param(
        vllm("stop: {grace: !!float 1:30.5}"),
        "FILE:4: engine.vllm.stop.grace: '1:30.5' is not a number; give seconds",
        id="a number to the base of 60, by its tag",
    ),
    pytest.param(
        vllm("port: 70000"),
        "FILE:4: engine.vllm.port: 70000 is above 65535; give a port from 1 to 65535",
        id="port out of range",
    ),
    pytest.param(
        vllm("port:"),
        "FILE:4: engine.vllm.port: is empty; give a port from 1 to 65535",
        id="empty value",
    ),
    pytest.param(
        vllm("extra_args:\n  - --seed\n  - 7\n  - --port=9000"),
        "FILE:7: engine.vllm.extra_args[2]: --port is set by the supervisor; set engine.vllm.port instead",
        id="port in extra_args",
    ),
    pytest.param(
        vllm("extra_args: --max-model-len 9 --api_key sk-very-secret"),
        "FILE:4: engine.vllm.extra_args: --api-key is set by the supervisor; "
        "set engine.vllm.api_key instead: arguments can be read by every user of this host",
        id="key in extra_args",
    ),
    pytest.param(
        vllm("launcher: []"),
        "FILE:4: engine.vllm.launcher: is empty; give the command that stands before the model, such as [vllm, serve]",
        id="empty launcher",
    ),
    pytest.param(
        vllm('launcher: ""'),
        "FILE:4: engine.vllm.launcher: is empty; give the command that stands before the model, such as [vllm, serve]",
        id="empty launcher as a string",
    ),
    pytest.param(
        vllm("launcher: [env, X=1, srun, vllm, serve]"),
        "FILE:4: engine.vllm.launcher: srun puts the engine outside our process tree, where it cannot be stopped with "
        "proof; launch vLLM itself, such as [vllm, serve]",
        id="launcher outside the tree",
    ),
    pytest.param(
        vllm("log_file: ${NOWHERE}/vllm.log"),
        "FILE:4: engine.vllm.log_file: ${NOWHERE} is not set in the environment; "
        "set NOWHERE, or write ${NOWHERE:-default}",
        id="unset variable",
    ),
    pytest.param(
        vllm("api_key: ${credential:key}"),
        "FILE:4: engine.vllm.api_key: ${credential:key}: CREDENTIALS_DIRECTORY is not set; "
        "add LoadCredential= to the unit, then `systemctl daemon-reload` and `systemctl restart` (systemd "
        "hands credentials over at the start only), or set the value another way",
        id="missing credential",
    ),
    pytest.param("", "FILE:1: is empty; write at least engine.vllm.model", id="empty file"),
    pytest.param("# nothing\n", "FILE:1: is empty; write at least engine.vllm.model", id="comments only"),
    pytest.param("- engine\n", "FILE:1: is a list at the top, not a mapping; begin with `engine:`", id="a list"),
    pytest.param(
        "\nengine\n", "FILE:2: is a single value at the top, not a mapping; begin with `engine:`", id="a word"
    ),
    pytest.param(
        vllm("port: 1\nhost: localhost\nport: 2"),
        "FILE:6: engine.vllm.port: appears twice (first on line 4); keep one of them",
        id="duplicate key",
    ),
    pytest.param(
        "engine:\n  vllm: [\n",
        "FILE:3: is not valid YAML: expected the node content, but found '<stream end>'; "
        "check indentation, quotes and brackets on and above this line",
        id="syntax",
    ),
    pytest.param(
        vllm("restart: {min_backoff: 10, max_backoff: 5}"),
        "FILE:4: engine.vllm.restart.max_backoff: max_backoff (5) is below min_backoff (10); "
        "raise max_backoff or lower min_backoff",
        id="max_backoff below min_backoff",
    ),
    pytest.param(
        vllm("restart: {min_backoff: 100}"),
        "FILE:4: engine.vllm.restart.min_backoff: max_backoff (60) is below min_backoff (100); "
        "raise max_backoff or lower min_backoff",
        id="min_backoff above the default of max_backoff",
    ),
    pytest.param(
        vllm('model_aliases: {small: ""}'),
        "FILE:4: engine.vllm.model_aliases.small: the alias has an empty target; "
        "name the served model it stands for, or remove it",
        id="alias with an empty target",
    ),
    pytest.param(
        vllm("log_file: /dev/null/x/vllm.log"),
        "FILE:4: engine.vllm.log_file: /dev/null/x/vllm.log cannot be written: /dev/null is not a directory; "
        "make it writable, or set engine.vllm.log_file elsewhere",
        id="log directory that cannot be made",
    ),
    pytest.param(
        vllm("stop: {grace: .nan}"),
        "FILE:4: engine.vllm.stop.grace: .nan is not a finite number; give seconds",
        id="not a number",
    ),
    pytest.param(
        vllm("probe: {interval: 0}"),
        "FILE:4: engine.vllm.probe.interval: 0 is not above 0; give seconds above 0",
        id="an interval of nothing",
    ),
    pytest.param(
        vllm("stop: {grace: -1}"), "FILE:4: engine.vllm.stop.grace: -1 is below 0; give seconds", id="negative seconds"
    ),
    pytest.param(
        vllm("log: {max_bytes: 10 parsecs}"),
        "FILE:4: engine.vllm.log.max_bytes: '10 parsecs' is not a size; "
        "give a size in bytes, or such as 100 MB or 1 GiB",
        id="size",
    ),
    pytest.param(
        vllm("env: {DEBUG: on}"),
        "FILE:4: engine.vllm.env.DEBUG: is true or false in YAML, not text; put it in quotes if it is meant as text",
        id="a boolean in env",
    ),
    pytest.param(
        vllm("env: {VLLM_API_KEY: sk-very-secret}"),
        "FILE:4: engine.vllm.env.VLLM_API_KEY: vLLM would demand a key that the probes do not have; "
        "set engine.vllm.api_key instead",
        id="a key behind our back",
    ),
    pytest.param(
        vllm('api_key: "sk very-secret"'),
        "FILE:4: engine.vllm.api_key: holds a character that an HTTP header cannot carry; "
        "use printable ASCII without spaces",
        id="a key that no header carries",
    ),
    pytest.param(
        vllm('env: {HF_TOKEN: "hf_one\\nhf_two"}'),
        "FILE:4: engine.vllm.env.HF_TOKEN: HF_TOKEN holds a line break; "
        "give one line: a file of a key may have more of them",
        id="a token of two lines",
    ),
    pytest.param(
        "engine:\n  vllm:\n    model: |\n      org/model\n",
        "FILE:3: engine.vllm.model: 'org/model\\n' holds a line break; give one line, without | or > in front",
        id="a model in a block",
    ),
    pytest.param(
        vllm("api_key:"),
        "FILE:4: engine.vllm.api_key: is empty; write NONE for an engine without a key",
        id="an empty key is not NONE",
    ),
    pytest.param(
        vllm("host: http://localhost"),
        "FILE:4: engine.vllm.host: 'http://localhost' is not an address or a host name; "
        "give only the address, without scheme, path or port",
        id="a URL as host",
    ),
    pytest.param(
        vllm("host: 127.0.0.1:8000"),
        "FILE:4: engine.vllm.host: '127.0.0.1:8000' is an address with a port; "
        "give only the address: the port goes into the key `port` beside it",
        id="a port behind the host",
    ),
    pytest.param(
        "engine: {vllm: {model: m}}\nmetrics: {host: 'localhost:9455'}\n",
        "FILE:2: metrics.host: 'localhost:9455' is an address with a port; "
        "give only the address: the port goes into the key `port` beside it",
        id="a port behind the host of the metrics",
    ),
    pytest.param(
        vllm("host: '::1::8000'"),
        "FILE:4: engine.vllm.host: '::1::8000' is not an IPv6 address; give only the address, such as ::1",
        id="a host with colons that is no address",
    ),
    pytest.param(
        vllm("host: 999.1.1.1"),
        "FILE:4: engine.vllm.host: '999.1.1.1' is not an IPv4 address; "
        "give four numbers from 0 to 255, such as 127.0.0.1",
        id="a host of too large numbers",
    ),
    pytest.param(
        vllm("host: 127.1"),
        "FILE:4: engine.vllm.host: 127.1 is not an IPv4 address; give four numbers from 0 to 255, such as 127.0.0.1",
        id="a host of two numbers",
    ),
    pytest.param(
        "engine: {available: [ollama], vllm: {model: m}}\n",
        "FILE:1: engine.available[0]: 'ollama' is not a possible value; give [vllm], the only engine there is",
        id="another engine",
    ),
    pytest.param(
        "engine: {vllm: {model: m}}\nmetrics: {port: 8000}\n",
        "FILE:2: metrics.port: vLLM and our metrics cannot both listen on 8000; change one",
        id="one port twice",
    ),
    pytest.param(
        "engine: {vllm: {model: m}}\ncontrol: {socket: /tmp/" + "x" * 110 + "}\n",
        "FILE:2: control.socket: the path of the socket has 115 bytes, Linux allows 107; give a shorter path",
        id="socket path too long",
    ),
    pytest.param(
        "engine: {vllm: {model: m}}\ncontrol: {admins: [no-such-user-here]}\n",
        "FILE:2: control.admins[0]: 'no-such-user-here' is no user of this host; "
        "name a user that exists, or give a numeric user id",
        id="unknown admin",
    ),
    pytest.param(
        "engine: {vllm: {model: m}}\ncontrol: {group: no-such-group-here}\n",
        "FILE:2: control.group: 'no-such-group-here' is no group of this host; "
        "name a group that exists, or give a numeric group id",
        id="unknown group",
    ),
    pytest.param(
        'engine: {vllm: {model: m}}\nstate_dir: "/tmp/a\\0b"\n',
        "FILE:2: state_dir: holds a NUL character; remove it",
        id="a path with a NUL",
    ),
    pytest.param(
        vllm("health_path: health"),
        "FILE:4: engine.vllm.health_path: 'health' is not a path; give a path that begins with /",
        id="a health path without a slash",
    ),
    pytest.param(
        vllm('health_path: "/he\\x07\\r\\nX"'),
        "FILE:4: engine.vllm.health_path: '/he\\x07\\r\\nX' holds a control character; remove it",
        id="a health path with control characters",
    ),
    pytest.param(
        vllm("health_path: /he alth"),
        "FILE:4: engine.vllm.health_path: '/he alth' holds a space or a character beyond ASCII; "
        "write it as %XX, as in a URL",
        id="a health path with a space",
    ),
    pytest.param(
        vllm("port: " + "9" * 5000),
        f"FILE:4: engine.vllm.port: '{'9' * 59}… is out of range; give a port from 1 to 65535",
        id="a port of 5000 digits",
    ),
    pytest.param("engine: 5\n", "FILE:1: engine: 5 is not a mapping; give a mapping with `vllm`", id="not a section"),
]


@pytest.mark.parametrize(("text", "line"), BAD)
def test_bad_input_gets_one_clear_line(refused: Refused, text: str, line: str) -> None:
    """Each mistake is told once: file, line, key, the value's problem and the remedy; no secret is repeated."""
    lines = refused(text)
    if text.startswith("engine: 5"):
        lines = [told for told in lines if "model: is missing" not in told]
    assert lines == [line]
    assert "very-secret" not in "".join(lines)


@pytest.mark.parametrize("number", [0x00, 0x07, 0x1B, 0xFFFE])
def test_a_character_that_yaml_does_not_allow_is_told_by_its_number(refused: Refused, number: int) -> None:
    """It may not show in an editor, so it can be searched for."""
    assert refused(vllm(f'host: "{chr(number)}"')) == [
        f"FILE:4: holds a character that YAML does not allow (#x{number:04x}); remove it"
    ]


def test_all_problems_are_told_at_once(refused: Refused) -> None:
    """A file with mistakes of every kind (references, keys, values, flags, across keys) is mended in one go."""
    lines = refused(
        "metrics: {port: many}\nengine:\n  vllm:\n    launcher: [docker, run, vllm]\n    prot: 1\n"
        "    log_file: ${UNSET}\n    extra_args: [--port, 1, true]\n    restart: {min_backoff: 9, max_backoff: 2}\n",
        "nonsense.key=1",
        "no-equals",
        environ={"VLLM_SUPERVISOR__ENGINE__VLLM__TIMEOUT": "soon"},
    )
    assert [line.split(": ")[:2] for line in lines] == [
        ["--set", "nonsense"],
        ["--set", "no-equals"],
        ["FILE:1", "metrics.port"],
        ["FILE:3", "engine.vllm.model"],
        ["FILE:4", "engine.vllm.launcher"],
        ["FILE:5", "engine.vllm.prot"],
        ["FILE:6", "engine.vllm.log_file"],
        ["FILE:7", "engine.vllm.extra_args[2]"],
        ["FILE:7", "engine.vllm.extra_args[0]"],
        ["FILE:8", "engine.vllm.restart.max_backoff"],
        ["VLLM_SUPERVISOR__ENGINE__VLLM__TIMEOUT", "engine.vllm.timeout"],
    ]


def test_all_that_is_wrong_with_the_environment_is_told(refused: Refused) -> None:
    """One name does not hide another's mistake."""
    lines = refused(vllm('env: {HF_TOKEN: "hf_one\\nhf_two", "a=b": c, SUPERVISED_ENGINE: x}'))
    name = "cannot be the name of an environment variable; use letters, digits and underscores"
    assert lines[1:] == [
        f"FILE:4: engine.vllm.env.a=b: 'a=b' {name}",
        "FILE:4: engine.vllm.env.SUPERVISED_ENGINE: SUPERVISED_ENGINE is how we find the engine's processes; remove it",
    ]
    assert lines[0].startswith("FILE:4: engine.vllm.env.HF_TOKEN: HF_TOKEN holds a line break")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, a directory, a FIFO (holds its reader for ever), not UTF-8: a line each, with the bad one."""
    bad = tmp_path / "latin.yaml"
    bad.write_bytes(b"engine:\n  vllm:\n    model: caf\xe9\n")
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    expected = {
        tmp_path / "gone.yaml": f"{tmp_path}/gone.yaml: cannot be read: No such file or directory; "
        "create it, make it readable, or name another one with -c FILE",
        tmp_path: f"{tmp_path}: cannot be read: it is a directory, not a regular file; "
        "create it, make it readable, or name another one with -c FILE",
        fifo: f"{fifo}: cannot be read: it is a FIFO, not a regular file; "
        "create it, make it readable, or name another one with -c FILE",
        bad: f"{bad}:3: is not UTF-8 (byte 0xe9); save the file as UTF-8",
    }
    for path, line in expected.items():
        with pytest.raises(ConfigError) as caught:
            load(path, environ=HOME)
        assert str(caught.value) == line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_log_directory_without_permission_is_told(refused: Refused, tmp_path: Path) -> None:
    """A folder that exists and is not ours to write is refused before anything is launched."""
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    (line,) = refused(vllm(f"log_file: {folder}/vllm.log"))
    assert f"engine.vllm.log_file: {folder}/vllm.log cannot be written: {folder} is not writable;" in line


def test_sources_have_their_rank(loads: Load) -> None:
    """`--set` beats the environment, which beats the file, which beats the default; maps are merged key by key."""
    text = vllm("port: 8001\nenv: {A: file, B: file}\nstop: {grace: 11}")
    environ = {
        "VLLM_SUPERVISOR__ENGINE__VLLM__PORT": "8002",
        "VLLM_SUPERVISOR__ENGINE__VLLM__ENV__B": "environment",
        "VLLM_SUPERVISOR__ENGINE__VLLM__EXTRA_ARGS": '[--a, "b c"]',
    }
    assert loads(text).settings.engine.vllm.port == 8001
    own = loads(text, environ=environ).settings.engine.vllm
    assert (own.port, own.env, own.extra_args) == (8002, {"A": "file", "B": "environment"}, ("--a", "b c"))
    sets = ("engine.vllm.port=8003", "engine.vllm.stop.drain_timeout=1", "engine.vllm.model_aliases.gpt-4.1=m")
    own = loads(text, *sets, environ=environ).settings.engine.vllm
    assert (own.port, own.stop.grace, own.stop.drain_timeout) == (8003, 11.0, 1.0)
    assert own.model_aliases == {"gpt-4.1": "m"}


def test_an_overridden_mistake_is_no_mistake(loads: Load) -> None:
    """A reference that cannot be filled in does not matter where another source gives the value."""
    assert loads(vllm("port: ${UNSET}"), "engine.vllm.port=1234").settings.engine.vllm.port == 1234


def test_problems_name_the_source_that_gave_the_value(refused: Refused) -> None:
    """A bad override is not blamed on the file."""
    assert refused(vllm("port: 1"), environ={"VLLM_SUPERVISOR__ENGINE__VLLM__PORT": "x"}) == [
        "VLLM_SUPERVISOR__ENGINE__VLLM__PORT: engine.vllm.port: 'x' is not a whole number; give a port from 1 to 65535"
    ]
    assert refused(vllm("port: 1"), "engine.vllm.port=y") == [
        "--set: engine.vllm.port: 'y' is not a whole number; give a port from 1 to 65535"
    ]
    assert refused(vllm(""), "engine.vllm.stop={grace: 1:30}") == [
        "--set: engine.vllm.stop.grace: '1:30' is not a number; give seconds"
    ]
    assert refused(vllm("port: 1"), environ={"VLLM_SUPERVISOR__ENGINE__VLLM__PROT": "1"}) == [
        "VLLM_SUPERVISOR__ENGINE__VLLM__PROT: engine.vllm.prot: is not a known key; did you mean `port`?"
    ]


MODEL = "engine.vllm.model"
OVERRIDE = "VLLM_SUPERVISOR__ENGINE__VLLM__"
NO_UTF8 = [
    ("", f"{MODEL}=\udcffm", {}, f"--set: {MODEL}: is not UTF-8; write it in UTF-8"),
    ("", "engine.vllm.extra_args=[\udcff]", {}, "--set: engine.vllm.extra_args: is not UTF-8; write it in UTF-8"),
    ("", "engine.vllm.env={A: \udcff}", {}, "--set: engine.vllm.env: is not UTF-8; write it in UTF-8"),
    (
        "",
        "engine.vllm.env.\udcff=x",
        {},
        "--set: engine.vllm.env.\\udcff: has a name that is not UTF-8; write it in UTF-8",
    ),
    (
        "",
        "",
        {f"{OVERRIDE}MODEL": "\udcff\udcfe"},
        f"{OVERRIDE}MODEL: {MODEL}: is not UTF-8; write it in UTF-8",
    ),
    (
        "cwd: /${X}",
        "",
        {"X": "\udcff"},
        "FILE:4: engine.vllm.cwd: is not UTF-8; set the variable in it to UTF-8",
    ),
    (
        'extra_args: [a, "\\ud800"]',
        "",
        {},
        "FILE:4: engine.vllm.extra_args[1]: is not UTF-8; write it in UTF-8",
    ),
    (
        'model_aliases: {"\\ud800": m}',
        "",
        {},
        "FILE:4: engine.vllm.model_aliases.\\ud800: has a name that is not UTF-8; write it in UTF-8",
    ),
]


@pytest.mark.parametrize(("body", "override", "environ", "line"), NO_UTF8)
def test_what_is_not_utf8_is_refused(
    refused: Refused, body: str, override: str, environ: Mapping[str, str], line: str
) -> None:
    """Bytes that no message, reply or log could carry are told by origin and key, from every source, and once."""
    assert refused(vllm(body), *([override] if override else []), environ=environ) == [line]


def test_what_is_not_utf8_does_no_harm_where_it_is_not_used(loads: Load) -> None:
    """The environment holds what others put there, and an overridden value does not matter."""
    environ = {"X": "\udcff", f"{OVERRIDE}MODEL": "\udcff"}
    assert loads(vllm(""), f"{MODEL}=m", environ=environ).settings.engine.vllm.model == "m"


def test_values_keep_their_spelling(loads: Load) -> None:
    """What is meant as text stays as written, although YAML reads numbers in it; modes are octal."""
    text = vllm("extra_args: [--seed, 007, --x, 1.10, --y, 1_000]\nenv: {A: 0x10, B: 12:30, C: 2024-01-01}")
    loaded = loads(text + "control: {mode: 0640, admins: [0, root], group: root}\n")
    own = loaded.settings.engine.vllm
    assert own.extra_args == ("--seed", "007", "--x", "1.10", "--y", "1_000")
    assert own.env == {"A": "0x10", "B": "12:30", "C": "2024-01-01"}
    control = loaded.settings.control
    assert (control.mode, control.admins, control.group) == (0o640, (0, 0), 0)


@pytest.mark.parametrize(
    ("text", "size"),
    [("5", 5), ("100 MB", 10**8), ("1 GiB", 2**30), ("1.5kB", 1500), ("64KiB", 65536), ("2 mib", 2**21)],
)
def test_sizes(loads: Load, text: str, size: int) -> None:
    """Sizes are bytes, or carry a unit of either kind."""
    assert loads(vllm(f"log: {{max_bytes: {text}}}")).settings.engine.vllm.log.max_bytes == size


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("0.0.0.0", "0.0.0.0"),
        ("'::'", "::"),
        ("'[::1]'", "::1"),
        ("'::1:8000'", "::1:8000"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("'[fe80::1%eth0]'", "fe80::1%eth0"),
        ("'::ffff:10.0.0.1'", "::ffff:10.0.0.1"),
        ("gpu-7.example.org", "gpu-7.example.org"),
        ("10.example", "10.example"),
    ],
)
def test_hosts(loads: Load, text: str, host: str) -> None:
    """Addresses of both families, with brackets and zones, and names."""
    settings = loads(vllm(f"host: {text}") + f"metrics: {{host: {text}}}\n").settings
    assert (settings.engine.vllm.host, settings.metrics.host) == (host, host)


SAME = [
    ("{dir}/x", "{dir}/x", "{dir}/s", "FILE:4: engine.vllm.log_file: {dir}/x is state_dir as well"),
    ("{dir}/x", "{dir}/s", "{dir}/x", "FILE:4: engine.vllm.log_file: {dir}/x is control.socket as well"),
    ("{dir}/x", "{dir}/s", "{dir}/s", "FILE:5: control.socket: {dir}/s is state_dir as well"),
    ("{dir}/folder", "{dir}/folder", "{dir}/s", "FILE:4: engine.vllm.log_file: {dir}/folder is state_dir as well"),
    ("{dir}/link", "{dir}/s/", "{dir}/./y", "FILE:4: engine.vllm.log_file: {dir}/s is state_dir as well"),
]


@pytest.mark.parametrize(("log", "state", "socket", "line"), SAME)
def test_one_place_for_two_things_is_refused(
    refused: Refused, tmp_path: Path, log: str, state: str, socket: str, line: str
) -> None:
    """The log, the socket and the folder of the state would replace each other; links and spellings do not hide it."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "s")
    text = vllm(f"log_file: {log}") + f"control: {{socket: {socket}}}\nstate_dir: {state}\n"
    told = refused(text.replace("{dir}", str(tmp_path)))
    assert told == [line.replace("{dir}", str(tmp_path)) + "; give each a path of its own"]


def test_a_heading_with_nothing_under_it_is_empty(loads: Load) -> None:
    """A section whose keys are all commented out stands at its defaults."""
    assert loads(vllm("restart:\nstop:")).settings == loads(vllm("")).settings


def test_a_key_from_a_credential_is_never_shown(loads: Load, tmp_path: Path) -> None:
    """The key is handed on, and neither the settings' text nor a problem holds it."""
    (tmp_path / "key").write_text("sk-very-secret\n")
    loaded = loads(vllm("api_key: ${credential:key}"), environ={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert loaded.settings.engine.vllm.api_key is not None
    assert loaded.settings.engine.vllm.api_key.get_secret_value() == "sk-very-secret"
    assert "very-secret" not in repr(loaded)


def test_a_value_from_a_secret_variable_is_not_repeated(refused: Refused) -> None:
    """A token that ends up in the wrong key is refused without being shown."""
    assert refused(vllm("port: ${HF_TOKEN}"), environ={"HF_TOKEN": "hf_very_secret"}) == [
        "FILE:4: engine.vllm.port: the value is not a whole number; give a port from 1 to 65535"
    ]


WARNED = [
    ("extra_args: [--disable-log-stats]", "leaves vLLM without the counters"),
    ("extra_args: --shutdown_timeout=30", "is not below stop.grace (30)"),
    ("model_aliases: {a: other}", "'other' is not the model, a --served-model-name or a --lora-modules name"),
]


@pytest.mark.parametrize(("body", "words"), WARNED)
def test_doubtful_input_is_warned_about(loads: Load, body: str, words: str) -> None:
    """What may work and probably does not is said once, and accepted."""
    (warning,) = loads(vllm(body)).warnings
    assert words in warning
    assert "c.yaml:4: engine.vllm." in warning


def test_a_key_in_the_daemon_s_environment_is_warned_about(loads: Load) -> None:
    """vLLM inherits VLLM_API_KEY and would turn the probes away."""
    (warning,) = loads(vllm(""), environ={"VLLM_API_KEY": "sk-very-secret"}).warnings
    assert "vLLM demands a key" in warning
    assert "very-secret" not in warning


def test_the_shipped_file_shows_every_key_at_its_default(tmp_path: Path) -> None:
    """etc/config.yaml is valid as it is, and uncommenting everything changes nothing."""
    text = (ROOT / "etc/config.yaml").read_text()
    uncommented = re.sub(r"(?m)^(\s*)#([a-z_]+:)", r"\1\2", text)
    environ = {**HOME, "HOME": str(tmp_path)}
    both = []
    for name, content in {"as-is": text, "uncommented": uncommented}.items():
        (tmp_path / name).write_text(content)
        both.append(load(tmp_path / name, environ=environ))
    assert both[0].settings == both[1].settings
    assert both[0].settings.engine.vllm.concurrency == 32
    for key in re.findall(r"(?m)^\s*#?([a-z_]+):", uncommented):
        assert key in text
    shown = set(re.findall(r"(?m)^\s*([a-z_]+):", uncommented))
    dumped = both[0].settings.model_dump()

    def names(node: dict[str, object]) -> set[str]:
        return set(node) | {name for value in node.values() if isinstance(value, dict) for name in names(value)}

    assert names(dumped) <= shown


def test_the_demo_loads(tmp_path: Path) -> None:
    """etc/demo.yaml is valid anywhere, without warnings, and keeps to one folder."""
    loaded = load(ROOT / "etc/demo.yaml", environ={**HOME, "HOME": str(tmp_path)})
    assert loaded.warnings == ()
    assert loaded.settings.engine.vllm.log_file == f"{tmp_path}/.cache/vllm-supervisor-demo/vllm.log"


KEYS = strategies.sampled_from(
    ["engine", "vllm", "model", "port", "extra_args", "env", "launcher", "restart", "control", "mode", "<<", "x", "1"]
)
SCALARS = (
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats()
    | strategies.text(max_size=8)
    | strategies.sampled_from(
        ["${X}", "${X:-${Y:-z}}", "${credential:../x}", "$$", "~nobody/x", "--config", "!!binary x"]
    )
)
TREES = strategies.recursive(
    SCALARS,
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def loads_or_refuses(path: Path, raw: bytes) -> None:
    """Load what must either load or be refused, with lines that are lines."""
    path.write_bytes(raw)
    problems: tuple[Problem, ...] = ()
    try:
        loaded = load(path, environ=HOME)
        launch.engine_spec(loaded.settings)
        launch.launch_spec(loaded.settings, HOME)
        launch.policy(loaded.settings)
    except ConfigError as error:
        problems = error.problems
    assert not any("\n" in str(problem) for problem in problems)


QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUIET
@given(text=strategies.text(max_size=80))
@example(text="a: &a [*a]")
@example(text="[" * 3000)
@example(text="engine: !!python/object/apply:os.system [x]")
@example(text="engine: {vllm: {model: m, port: 0b_}}")
@example(text="engine: {vllm: {model: m, port: " + "9" * 5000 + "}}")
@example(text="engine: {vllm: {model: m, timeout: 1" + "0" * 400 + "}}")
@example(text='a: "\\U7fffffff"')
@example(text="%YAML 9999999999.1\n---\na: b")
@example(text="<<: {engine: {vllm: {model: m}}}")
@example(text="a: &a {b: c}\n" + "d: {<<: [*a, *a]}\n? [x]\n: y")
def test_any_text_loads_or_is_refused(tmp_path: Path, text: str) -> None:
    """Whatever stands in the file, the answer is a configuration or a list of problems."""
    loads_or_refuses(tmp_path / "c.yaml", text.encode(errors="surrogatepass"))


@QUIET
@given(tree=TREES, model=SCALARS)
def test_any_tree_loads_or_is_refused(tmp_path: Path, tree: object, model: object) -> None:
    """The same for texts that are well-formed and full of our own keys."""
    import yaml  # noqa: PLC0415 - only this test writes YAML

    text = yaml.dump({"engine": {"vllm": tree}, "x": model}) + yaml.dump({"control": tree})
    loads_or_refuses(tmp_path / "c.yaml", text.encode())


def test_aliases_cannot_ask_for_more_memory_than_there_is(refused: Refused) -> None:
    """A few lines of aliases that stand for a billion values are refused at once."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (line,) = [told for told in refused("\n".join(lines)) if "values" in told]
    assert line.endswith("has more than 20000 values; write it out flat, without aliases")


@pytest.mark.parametrize("word", ["NONE", "none", "None"])
def test_no_key_in_any_case(word: str, tmp_path: Path) -> None:
    """A key called `none` would be demanded of every client, by somebody who wanted none."""
    file = tmp_path / "config.yaml"
    file.write_text(vllm(f"api_key: {word}"))
    assert load(file, environ={}).settings.engine.vllm.api_key is None


def test_a_key_in_pem_has_lines(tmp_path: Path) -> None:
    """Not every secret goes into a header."""
    file = tmp_path / "config.yaml"
    file.write_text(vllm('env: {SIGNING_KEY: "-----BEGIN PRIVATE KEY-----\\nabc\\n"}'))
    assert "\n" in load(file, environ={}).settings.engine.vllm.env["SIGNING_KEY"]
