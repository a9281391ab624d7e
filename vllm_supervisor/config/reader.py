"""The process that reads a configuration: `python -m vllm_supervisor.config.reader`; see `config.plan`.

The request comes on stdin: `{"path", "sets"}`. The answer goes to stdout, a pipe to the daemon that asked:
`{"plan": …}`, or `{"problems": […]}`.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from vllm_supervisor.config.digests import digests
from vllm_supervisor.config.launch import advice, engine_spec, launch_spec, liveness, policy
from vllm_supervisor.config.load import Loaded, load
from vllm_supervisor.config.paths import control_socket, state_dir
from vllm_supervisor.config.plan import ControlPlan, LoggingPlan, LogPlan, MetricsPlan, Plan, encode
from vllm_supervisor.errors import ConfigError, Problem


def make_plan(loaded: Loaded, environ: Mapping[str, str]) -> Plan:
    """Turn a valid configuration into plain values. Raises ConfigError where a place cannot be found out."""
    settings = loaded.settings
    control = settings.control
    return Plan(
        policy=policy(settings),
        liveness=liveness(settings),
        launch=launch_spec(settings, environ, loaded.secrets),
        engine=engine_spec(settings),
        control=ControlPlan(str(control_socket(settings, environ)), control.mode, control.group, control.admins),
        metrics=MetricsPlan(settings.metrics.enabled, settings.metrics.host, settings.metrics.port),
        logging=LoggingPlan(settings.logging.level, settings.logging.format),
        log=LogPlan(settings.engine.vllm.log.max_bytes, settings.engine.vllm.log.keep),
        state_dir=str(state_dir(settings, environ)),
        ready_when=settings.systemd.ready_when,
        warnings=loaded.warnings,
        advice=advice(settings),
        values=digests(settings),
    )


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    try:
        loaded = load(Path(request["path"]), sets=request["sets"], environ=os.environ)
        answer: dict[str, object] = {"plan": encode(make_plan(loaded, os.environ))}
    except ConfigError as error:
        answer = {"problems": [_plain(problem) for problem in error.problems]}
    sys.stdout.write(json.dumps(answer))


def _plain(problem: Problem) -> dict[str, str]:
    return {"where": problem.where, "key": problem.key, "why": problem.why, "remedy": problem.remedy}


if __name__ == "__main__":
    main()
