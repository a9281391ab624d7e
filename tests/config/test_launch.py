"""What is made of settings: command, environment, address, places."""

from pathlib import Path

import pytest

from vllm_supervisor.config import launch, paths
from vllm_supervisor.config.settings import Settings
from vllm_supervisor.domain.advice import Setting
from vllm_supervisor.domain.model import Policy
from vllm_supervisor.domain.secret import Secret
from vllm_supervisor.errors import ConfigError


def made(**vllm: object) -> Settings:
    return Settings.model_validate({"engine": {"vllm": {"model": "m"} | vllm}})


def test_the_command(tmp_path: Path) -> None:
    """Launcher, model, address, then the extra arguments as they are; paths are absolute."""
    spec = launch.launch_spec(made(extra_args="--a 'b c'", launcher="uv run vllm serve", log_file="v.log"), {})
    assert spec.argv == ("uv", "run", "vllm", "serve", "m", "--host", "127.0.0.1", "--port", "8000", "--a", "b c")
    assert (spec.cwd, spec.log_file) == (None, str(Path.cwd() / "v.log"))
    assert launch.launch_spec(made(log_file="journal", cwd=str(tmp_path)), {}).log_file == "journal"


def test_the_environment_of_the_child() -> None:
    """The daemon's dealings with systemd stay behind, `env` goes over the rest, and the marker is kept."""
    environ = {
        "PATH": "/bin",
        "KEEP": "1",
        "CUDA_HOME": "/old",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_SUPERVISOR__ENGINE__VLLM__PORT": "1",
        "NOTIFY_SOCKET": "x",
        "WATCHDOG_USEC": "x",
        "WATCHDOG_PID": "x",
        "LISTEN_FDS": "x",
        "LISTEN_PID": "x",
        "LISTEN_FDNAMES": "x",
        "CREDENTIALS_DIRECTORY": "x",
        "RUNTIME_DIRECTORY": "x",
        "STATE_DIRECTORY": "x",
        "LOGS_DIRECTORY": "x",
        "CACHE_DIRECTORY": "x",
        "INVOCATION_ID": "x",
        "JOURNAL_STREAM": "x",
    }
    spec = launch.launch_spec(made(env={"CUDA_HOME": "/opt/cuda", "N": 1}, api_key="sk-1234"), environ)
    assert spec.env == {
        "PATH": "/bin",
        "KEEP": "1",
        "CUDA_HOME": "/opt/cuda",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "N": "1",
        "VLLM_API_KEY": "sk-1234",
        "SPT_NOENV": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "86400",
    }
    assert launch.added_env(spec, environ) == {
        "CUDA_HOME": "/opt/cuda",
        "N": "1",
        "SPT_NOENV": "1",
        "VLLM_API_KEY": "***",
        "VLLM_ENGINE_READY_TIMEOUT_S": "86400",
    }
    own = {"SPT_NOENV": "0", "VLLM_ENGINE_READY_TIMEOUT_S": "60"}
    assert launch.launch_spec(made(), own).env == own
    configured = launch.launch_spec(made(env={"VLLM_ENGINE_READY_TIMEOUT_S": 5}), own).env
    assert configured["VLLM_ENGINE_READY_TIMEOUT_S"] == "5"


def test_what_the_start_watch_needs_to_find_the_weights() -> None:
    """The model, its revision and where vLLM keeps weights, whatever the flags' spelling."""
    spec = launch.launch_spec(made(extra_args=["--revision=v2", "--download_dir", "/data/models"]), {})
    assert (spec.model, spec.revision, spec.download_dir) == (made().engine.vllm.model, "v2", "/data/models")


def test_secrets_are_masked_in_what_is_shown() -> None:
    """By the option's or variable's name, and by value wherever a known secret appears; numbers stay readable."""
    args = [
        "--hf-token",
        "hf_abcd",
        "--my_secret=x1",
        "--url",
        "http://u:s3cr3t@h",
        "--max-num-batched-tokens",
        "8192",
        "--tokenizer",
        "t",
        "--ssl-keyfile",
        "k.pem",
    ]
    settings = made(launcher=["env", "HF_TOKEN=hf_x", "vllm", "serve"], extra_args=args, env={"URL": "u:s3cr3t"})
    spec = launch.launch_spec(settings, {})
    assert launch.masked_argv(spec, [Secret("s3cr3t")])[1:] == (
        *("HF_TOKEN=***", "vllm", "serve", "m", "--host", "127.0.0.1", "--port", "8000"),
        *("--hf-token", "***", "--my_secret=***", "--url", "http://u:***@h"),
        *("--max-num-batched-tokens", "8192", "--tokenizer", "t", "--ssl-keyfile", "k.pem"),
    )
    assert launch.added_env(spec, {}, [Secret("s3cr3t")])["URL"] == "u:***"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("[::]", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("10.0.0.7", "http://10.0.0.7:8000"),
        ("gpu-1.example", "http://gpu-1.example:8000"),
    ],
)
def test_the_address_that_is_connected_to(host: str, url: str) -> None:
    """An address that means "any" is reached by loopback, and IPv6 stands in brackets."""
    assert launch.engine_spec(made(host=host)).base_url == url


def test_the_engine_as_it_is_asked() -> None:
    """Served name, scheme and revision come from vLLM's flags; the key is a secret."""
    args = ["--served-model-name", "s", "t", "--ssl-certfile", "c.pem", "--revision", "r1"]
    spec = launch.engine_spec(made(extra_args=args, api_key="sk-1234", concurrency=7))
    assert (spec.model, spec.base_url, spec.revision, spec.concurrency) == ("s", "https://127.0.0.1:8000", "r1", 7)
    assert spec.api_key is not None
    assert spec.api_key.reveal() == "sk-1234"
    assert "sk-1234" not in repr(spec)


def test_defaults_agree_with_the_policy_s() -> None:
    """The configuration's defaults are those that the machine's tests assume."""
    assert launch.policy(made()) == Policy()


def test_every_number_of_the_policy_comes_from_its_key() -> None:
    """No key is forgotten or swapped."""
    settings = made(
        restart={
            "enabled": False,
            "min_backoff": 2,
            "max_backoff": 3,
            "healthy_reset": 4,
            "never_ready_limit": 5,
            "retry_failed_every": 6,
            "exit_when_failed": True,
        },
        startup={"timeout": 7},
        probe={"interval": 8, "failure_threshold": 9, "restart_after": 10},
        stop={"drain_timeout": 11, "grace": 12},
    )
    assert launch.policy(settings) == Policy(
        restart_enabled=False,
        min_backoff=2,
        max_backoff=3,
        healthy_reset=4,
        never_ready_limit=5,
        retry_failed_every=6,
        exit_when_failed=True,
        startup_timeout=7,
        probe_interval=8,
        failure_threshold=9,
        restart_after=10,
        drain_timeout=11,
        stop_grace=12,
    )


def placed(**sections: object) -> Settings:
    return Settings.model_validate({"engine": {"vllm": {"model": "m"}}} | sections)


@pytest.mark.parametrize(
    ("uid", "environ", "path"),
    [
        (0, {}, "/run/vllm-supervisor/control.sock"),
        (0, {"RUNTIME_DIRECTORY": "/run/a:/run/b"}, "/run/a/control.sock"),
        (7, {"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/vllm-supervisor/control.sock"),
        (7, {"RUNTIME_DIRECTORY": "/run/a", "XDG_RUNTIME_DIR": "/run/user/7"}, "/run/a/control.sock"),
    ],
)
def test_where_the_socket_is(monkeypatch: pytest.MonkeyPatch, uid: int, environ: dict[str, str], path: str) -> None:
    """systemd's directory, else root's, else the user's session's."""
    monkeypatch.setattr("os.geteuid", lambda: uid)
    assert str(paths.control_socket(placed(), environ)) == path
    assert str(paths.control_socket(placed(control={"socket": "/s"}), environ)) == "/s"


def test_no_place_for_the_socket_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any directory that is ours, the user is asked rather than a guess made in /tmp."""
    monkeypatch.setattr("os.geteuid", lambda: 987654321)
    with pytest.raises(ConfigError, match=r"control\.socket: there is no directory for the socket"):
        paths.control_socket(placed(), {})


def test_where_the_state_is() -> None:
    """The configured folder, else systemd's first, else below the home directory."""
    environ = {"STATE_DIRECTORY": "/var/lib/a:/b", "HOME": "/home/u"}
    assert str(paths.state_dir(placed(state_dir="/s"), environ)) == "/s"
    assert str(paths.state_dir(placed(), environ)) == "/var/lib/a"
    assert str(paths.state_dir(placed(), {"HOME": "/home/u"})) == "/home/u/.local/state/vllm-supervisor"


def test_what_is_known_of_the_load() -> None:
    """What clients are told, what caps it, and vLLM's flags in all their spellings; nonsense is vLLM's to refuse."""
    settings = Settings.model_validate(
        {
            "engine": {
                "vllm": {
                    "model": "m",
                    "concurrency": 40,
                    "extra_args": "--max_num_seqs=48 --max-model-len 8192 --kv-cache-dtype fp8 "
                    "--max-num-batched-tokens 1k",
                }
            },
            "resources": {"max_concurrent_jobs": 32},
        }
    )
    assert launch.advice(settings) == Setting(
        concurrency=32, configured=40, max_concurrent_jobs=32, max_num_seqs=48, max_model_len=8192, kv_cache_dtype="fp8"
    )
    endless = made(extra_args="--max-num-seqs " + "9" * 5000)
    assert launch.advice(endless).max_num_seqs is None
