"""vLLM's output in the journal, written and read back under a real systemd."""

import json

import pytest

from tests.eventually import eventually
from tests.systemd.conftest import CONFIG, Container

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(180)]

JOURNAL = CONFIG.replace("${VLLM_LOG_FILE}", "journal")
ALLOWED = "[Service]\nSupplementaryGroups=systemd-journal\n"
SCRIPT = "/usr/local/bin/quarrel"
QUARREL = """#!/bin/sh
i=0; while [ $i -lt 300 ]; do echo "INFO filler $i"; i=$((i+1)); done
printf 'loading  10%%\\rloading 100%%\\n'
echo "vllm: error: unrecognized arguments: --no-such-flag"
exit 2
"""


def events(box: Container, name: str) -> list[dict[str, object]]:
    lines = box.run("vllm-supervisor events").stdout.splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def quarrels(box: Container) -> None:
    """Have an engine that complains of its arguments and ends."""
    box.write(SCRIPT, QUARREL)
    box.run(f"chmod 755 {SCRIPT}")
    text = JOURNAL.replace("[vllm-supervisor, simulate, serve]", f"[{SCRIPT}]")
    box.write("/etc/vllm-supervisor/config.yaml", text)


def test_phases_and_clients_read_the_journal(service: Container) -> None:
    """Phases of the start come from the engine's lines; `logs` and `logs -f` have them, and no other service's."""
    slowly = JOURNAL.replace("log_file:", 'env: {SIM_LOAD_SECONDS: "6"}\n    log_file:')
    service.write("/etc/vllm-supervisor/config.yaml", slowly)
    with service.drop_in(ALLOWED):
        service.run("systemctl start vllm-supervisor")
        service.wait_ready()
        assert "loading_weights" in {event["phase"] for event in events(service, "start_phase")}
        assert service.status()["engine"]["startup"]["load_s"] is not None, "a figure that only the log has"
        assert service.status()["log"] == {"readable": True, "detail": None}
        shown = service.run("vllm-supervisor logs -n 1000").stdout
        generation = service.status()["generation"]
        assert shown.startswith(f"[vllm-supervisor] generation {generation} is launched")
        assert "Application startup complete" in shown
        assert "systemd" not in shown
        assert len(service.run("vllm-supervisor logs -n 3").stdout.splitlines()) == 3
        service.run("systemd-run --unit follower -p StandardOutput=file:/run/followed vllm-supervisor logs -f -n 1")
        eventually(lambda: service.run("cat /run/followed", check=False).stdout, what="the last line")
        service.run("vllm-supervisor restart")
        following = f"generation {generation + 1} is launched"
        eventually(lambda: following in service.run("cat /run/followed").stdout, what="the next engine's lines")
        assert service.run("pgrep -c journalctl").stdout.strip() == "1"
        service.run("kill -9 $(systemctl show -P MainPID vllm-supervisor)")
        eventually(lambda: service.run("pgrep journalctl", check=False).stdout == "", what="nobody reads any more")
        assert service.show("ExecMainStatus", "follower") == "3"


def test_the_cause_is_read_from_the_journal(service: Container) -> None:
    """An engine's last words, however soon after them it is asked; this generation's alone; in the bundle too."""
    quarrels(service)
    with service.drop_in(ALLOWED):
        service.run("systemctl start vllm-supervisor")
        service.run("vllm-supervisor wait --for failed --timeout 30")
        last = service.status()["last_exit"]
        assert (last["diagnosis"]["class"], last["diagnosis"]["line"]) == ("bad_cli_argument", 302)
        kept = service.run(f"cat {last['bundle']}/vllm.log").stdout
        assert kept.startswith("INFO filler 0\n")
        assert "unrecognized arguments" in kept
        lines = service.run("journalctl -o cat -t vllm -u vllm-supervisor").stdout
        assert lines.rstrip().endswith(f"[vllm-supervisor] generation {service.status()['generation']} is gone")


def test_a_journal_that_may_not_be_read_is_told(service: Container) -> None:
    """The shipped unit lets nobody read the journal: then status says that the exit code alone decides."""
    quarrels(service)
    service.run("systemctl start vllm-supervisor")
    eventually(lambda: service.status()["last_exit"], what="the first end")
    eventually(lambda: not service.status()["log"]["readable"], what="the verdict on the log")
    status = service.status()
    assert "rests on the exit code alone" in status["log"]["detail"]
    assert "rests on the exit code alone" in service.run("vllm-supervisor status").stdout
    for command in ("logs", "logs -f"):
        asked = service.run(f"vllm-supervisor {command}", check=False)
        assert (asked.returncode, asked.stdout) == (1, "")
        assert "SupplementaryGroups=systemd-journal" in asked.stderr
    assert len(events(service, "log_not_read")) == 1
    metrics = service.run("curl -s http://127.0.0.1:9455/metrics").stdout
    assert 'vllm_supervisor_log_problems_total{problem="not_readable"} 1.0' in metrics


def test_a_journal_that_may_not_be_read_is_told_before_any_end(service: Container) -> None:
    """An engine that serves leaves nothing to examine: the status, its text and the doctor tell all the same."""
    service.write("/etc/vllm-supervisor/config.yaml", JOURNAL)
    service.run("systemctl start vllm-supervisor")
    service.wait_ready()
    eventually(lambda: not service.status()["log"]["readable"], what="the verdict on the log")
    assert service.status()["last_exit"] is None
    assert "rests on the exit code alone" in service.run("vllm-supervisor status").stdout
    assert "may not read the journal" in service.run("vllm-supervisor doctor", check=False).stdout
