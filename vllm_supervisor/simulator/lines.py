"""Log lines as vLLM 0.32 prints them: its own on stdout with a prefix, uvicorn's and progress bars without one.

Written straight to the descriptors: nothing is buffered, so that nothing is printed twice after a fork, or lost by
SIGKILL.
"""

import os
import time

OUT, ERR = 1, 2


def put(data: bytes, fd: int = OUT) -> None:
    """Write all of `data`; an end that nobody reads any more is no reason to stop serving."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return


def plain(text: str, fd: int = ERR) -> None:
    """Write one line without prefix: uvicorn's lifecycle, tracebacks."""
    put(text.encode() + b"\n", fd)


class Log:
    """vLLM's logger in one process, named as its lines are: `(APIServer pid=N) INFO 11-29 21:13:04 [place] text`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, place: str, text: str) -> None:
        """Print at INFO; `place` is vLLM's `file.py:LINE`. Every line of `text` gets the prefix."""
        self._put("INFO", place, text)

    def warning(self, place: str, text: str) -> None:
        """Print at WARNING."""
        self._put("WARNING", place, text)

    def error(self, place: str, text: str) -> None:
        """Print at ERROR."""
        self._put("ERROR", place, text)

    def _put(self, level: str, place: str, text: str) -> None:
        prefix = f"({self._name} pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} [{place}] "
        put("".join(f"{prefix}{line}\n" for line in text.split("\n")).encode())


SHARDS = "Loading safetensors checkpoint shards"


def shard_bar(done: int, total: int, elapsed: float) -> None:
    """Redraw tqdm's bar on stderr: a carriage return before, and no newline but after the last one."""
    rate = f"{done / elapsed:5.2f}it/s" if done and elapsed > 0 else "?it/s"
    left = _clock(elapsed / done * (total - done)) if done else "?"
    bar = f"\r{SHARDS}: {100 * done // total:3d}% Completed | {done}/{total} [{_clock(elapsed)}<{left}, {rate}]"
    put(bar.encode() + (b"\n\n" if done == total else b""), ERR)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


LOGO = (
    "",
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
    "  █▄█▀ █     █     █     █  model   {model}",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    "",
)

ROUTES = (
    ("/load", "GET"),
    ("/version", "GET"),
    ("/health", "GET"),
    ("/metrics", "GET"),
    ("/v1/models", "GET"),
    ("/ping", "GET"),
    ("/ping", "POST"),
)
GENERATE_ROUTES = (("/v1/chat/completions", "POST"), ("/v1/completions", "POST"))
POOLING_ROUTES = (("/pooling", "POST"), ("/v1/embeddings", "POST"))

PORT_TAKEN = """\
Traceback (most recent call last):
  File "/usr/local/bin/vllm", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "vllm/entrypoints/cli/serve.py", line 156, in cmd
    uvloop.run(run_server(args))
  File "vllm/entrypoints/launchers/api_server/entry.py", line 176, in run_server
    listen_address, sock = setup_server(args, reuse_port=False)
                           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "vllm/entrypoints/launchers/launcher.py", line 348, in create_server_socket
    sock.bind(addr)
{error}"""

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

OUTPUT_HANDLER_FAILED = f"""\
AsyncLLM output_handler failed.
Traceback (most recent call last):
  File "vllm/v1/engine/async_llm.py", line 849, in output_handler
    outputs = await engine_core.get_output_async()
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "vllm/v1/engine/core_client.py", line 1235, in get_output_async
    raise self._format_exception(outputs) from None
vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}"""

ENGINE_NEVER_STARTED = """\
Traceback (most recent call last):
  File "/usr/local/bin/vllm", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "vllm/v1/engine/core_client.py", line 1010, in launch_core_engines
    wait_for_engine_startup(
  File "vllm/v1/engine/utils.py", line 1203, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {failed}"""

TERMINATED = """\
Traceback (most recent call last):
  File "/usr/local/bin/vllm", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "vllm/entrypoints/launchers/api_server/entry.py", line 165, in signal_handler
    raise KeyboardInterrupt("terminated")
KeyboardInterrupt: terminated"""
