"""What collectors put around each line of a log."""

import json
from collections.abc import Callable


def _each(wrap: Callable[[str], str]) -> Callable[[str], str]:
    return lambda log: "".join(f"{wrap(line)}\n" for line in log.splitlines())


WRAPPERS: dict[str, Callable[[str], str]] = {
    "plain": lambda log: log,
    "crlf": lambda log: log.replace("\n", "\r\n"),
    "compose": _each(lambda line: f"vllm-1  | {line}"),
    "compose, stamped": _each(lambda line: f"vllm-1  | 2025-11-29T19:31:52.123456789Z {line}"),
    "kubectl --timestamps": _each(lambda line: f"2025-11-29T19:31:52.123456789Z {line}"),
    "kubectl --prefix": _each(lambda line: f"[pod/vllm-0/engine] {line}"),
    "stern": _each(lambda line: f"vllm-6d4b75cb6d-hwqx9 vllm {line}"),
    "stern, coloured": _each(lambda line: f"\x1b[32mvllm-6d4b75cb6d-hwqx9\x1b[0m \x1b[32mvllm\x1b[0m {line}"),
    "stern, stamped": _each(lambda line: f"vllm-server-7f8c9d5b6-x2x4z engine 2025-11-29T19:31:52.123456789Z {line}"),
    "cri": _each(lambda line: f"2025-11-29T19:31:52.123456789+00:00 stderr F {line}"),
    "journald": _each(lambda line: f"Nov 29 19:31:52 gpu1 vllm[812]: {line}"),
    "journald, iso": _each(lambda line: f"2025-11-29T19:31:52+0000 gpu1 vllm[812]: {line}"),
    "docker json": _each(
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-11-29T19:31:52.1Z"})
    ),
    "rank": _each(lambda line: f"[rank0]: {line}"),
    "double group": _each(lambda line: f"(Worker pid=1) (Worker_TP1 pid=1) {line}"),
    "colours": _each(lambda line: f"\x1b[0;36m(EngineCore_DP0 pid=88)\x1b[0;0m {line}"),
    "ray": _each(lambda line: f"(RayWorkerWrapper pid=5280, ip=10.0.0.4) {line}"),
    "quoted": _each(lambda line: f"> {line}"),
    "pm2": _each(lambda line: f"0|vllm     | {line}"),
    "bracketed": _each(lambda line: f"[2025-11-29 19:31:52] {line}"),
    "syslog": _each(lambda line: f"<30>1 2025-11-29T19:31:52.123456Z gpu1 vllm 812 - - {line}"),
    "grep": _each(lambda line: f"/var/log/vllm.log:17:{line}"),
    "cat -n": _each(lambda line: f"  1234\t{line}"),
    "progress before": _each(lambda line: f"Loading shards:  10%|#  |\rLoading shards:  20%|## |\r{line}"),
}
