"""vLLM's own flags, as far as the simulator heeds them; the rest is kept for the log line that shows them."""

from collections.abc import Mapping
from typing import NamedTuple

from vllm_supervisor.simulator import flags, knobs

OLDER = frozenset({"task"})
"""Flags of earlier versions that still mean something here."""


class UsageError(Exception):
    """Wrong flags. `prog` begins the line, as argparse has it; the exit status is 2."""

    def __init__(
        self, message: str, *, prog: str = "vllm serve", usage: str = "vllm serve [model_tag] [options]"
    ) -> None:
        super().__init__(message)
        self.prog = prog
        self.usage = usage


class ServeArgs(NamedTuple):
    """What was asked for. `given` holds every flag as parsed, under vLLM's name for it."""

    model: str = "Qwen/Qwen3-0.6B"
    host: str | None = None
    port: int = 8000
    served_names: tuple[str, ...] = ()
    loras: tuple[tuple[str, str], ...] = ()
    api_keys: tuple[str, ...] = ()
    pooling: bool = False
    max_model_len: int = 4096
    max_num_seqs: int = 256
    tensor_parallel_size: int = 1
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    load_tracking: bool = False
    log_stats: bool = True
    access_log: bool = True
    shutdown_timeout: float = 0.0
    given: Mapping[str, object] = {}

    @property
    def name(self) -> str:
        """The first served name: the label of the metrics."""
        return self.served_names[0]


def parse(argv: list[str], environ: Mapping[str, str]) -> tuple[ServeArgs, dict[str, str | None]]:
    """Read what follows `serve`. Returns the arguments and the `--sim-` flags. Raises UsageError."""
    given, sim, words = _scan(argv)
    config = given.get("config")
    if isinstance(config, str):
        from_file, sim_from_file, _ = _scan(_config_file(config))
        given = from_file | given
        sim = sim_from_file | sim
    if len(words) > 1:
        raise _unrecognized(words[1:])
    shown: dict[str, object] = {"model_tag": words[0]} if words else {}
    model = words[0] if words else _text(given.get("model")) or ServeArgs().model
    shown |= {name.replace("-", "_"): _plain(value) for name, value in given.items()}
    if words:
        shown["model"] = model
    env_key = environ.get("VLLM_API_KEY")
    return (
        ServeArgs(
            model=model,
            host=_text(given.get("host")),
            port=_number(given, "port", 8000),
            served_names=_list(given.get("served-model-name")) or (model,),
            loras=tuple(_lora(text) for text in _list(given.get("lora-modules"))),
            api_keys=_list(given.get("api-key")) or ((env_key,) if env_key else ()),
            pooling=given.get("runner") == "pooling"
            or given.get("task") in {"embed", "embedding", "classify", "score"},
            max_model_len=_number(given, "max-model-len", ServeArgs().max_model_len),
            max_num_seqs=_number(given, "max-num-seqs", ServeArgs().max_num_seqs),
            tensor_parallel_size=_number(given, "tensor-parallel-size", 1),
            ssl_certfile=_text(given.get("ssl-certfile")),
            ssl_keyfile=_text(given.get("ssl-keyfile")),
            load_tracking=given.get("enable-server-load-tracking") is True,
            log_stats=given.get("disable-log-stats") is not True,
            access_log=given.get("disable-uvicorn-access-log") is not True,
            shutdown_timeout=_number(given, "shutdown-timeout", 0),
            given=shown,
        ),
        sim,
    )


def _scan(argv: list[str]) -> tuple[dict[str, object], dict[str, str | None], list[str]]:
    given: dict[str, object] = {}
    sim: dict[str, str | None] = {}
    words: list[str] = []
    unknown: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        if word.startswith("-O"):
            given["optimization-level"] = word[2:] or (rest.pop(0) if rest else "")
            continue
        name, equals, value = word.partition("=")
        name = flags.SHORT.get(name) or name.removeprefix("--").replace("_", "-")
        if name.startswith(knobs.FLAG):
            knob = name.removeprefix(knobs.FLAG).replace("-", "_")
            takes_value = knob not in knobs.SWITCHES
            sim[knob] = value if equals else rest.pop(0) if takes_value and rest else None
        elif not _take(name, value if equals else None, rest, given):
            unknown.append(word)
    if unknown:
        raise _unrecognized(unknown)
    return given, sim, words


def _take(name: str, value: str | None, rest: list[str], given: dict[str, object]) -> bool:
    """Store the flag `name`, with its values taken off `rest`; False when vLLM does not know it."""
    base = name.partition(".")[0]
    if name in flags.SWITCHES:
        given[name] = True
    elif name.startswith("no-") and name.removeprefix("no-") in flags.SWITCHES:
        given[name.removeprefix("no-")] = False
    elif name in flags.LISTS:
        values = [value] if value is not None else []
        while rest and not rest[0].startswith("-"):
            values.append(rest.pop(0))
        if not values:
            raise UsageError(f"argument --{name}: expected at least one argument")
        given[name] = values
    elif base in flags.VALUES or base in OLDER:
        if value is None:
            if not rest or (rest[0].startswith("--")):
                raise UsageError(f"argument --{name}: expected one argument")
            value = rest.pop(0)
        given[name] = value
    else:
        return False
    return True


def _unrecognized(words: list[str]) -> UsageError:
    # The top-level parser reports these, with its own usage (measured, 0.32).
    return UsageError("unrecognized arguments: " + " ".join(words), prog="vllm", usage="vllm [-h] [-v] {serve} ...")


def _config_file(path: str) -> list[str]:
    """Turn a flat `key: value` YAML file into flags; lists as `- item` lines. Richer YAML is not read."""
    argv: list[str] = []
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs 5 ms of each start
            lines = file.read().splitlines()
    except OSError as error:
        raise UsageError(f"argument --config: {error}") from None
    for line in lines:
        text = line.split(" #")[0].strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("- "):
            argv.append(text[2:].strip().strip("\"'"))
            continue
        key, _, value = text.partition(":")
        value = value.strip().strip("\"'")
        if value.lower() == "false":
            continue
        argv.append("--" + key.strip())
        if value and value.lower() != "true":
            argv.append(value)
    return argv


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _lora(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    return name, path


def _plain(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _number(given: Mapping[str, object], name: str, default: int) -> int:
    """Read an integer in vLLM's spellings: `8192`, `16k`, `1K`, `2M`. `-1` and `auto` leave the choice to us."""
    text = _text(given.get(name))
    if text is None or text in {"auto", "-1"}:
        return default
    scale = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}.get(text[-1:], 1)
    try:
        return int(float(text[:-1]) * scale) if scale > 1 else int(text)
    except ValueError:
        raise UsageError(f"argument --{name}: invalid int value: {text!r}") from None
