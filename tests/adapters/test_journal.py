"""The journal where there is no journalctl, or one that behaves badly; with a real journald it is tested elsewhere."""

import os
import socket
import time
from pathlib import Path

import anyio
import pytest

from tests.eventually import eventually
from vllm_supervisor.adapters import journal as module
from vllm_supervisor.adapters.journal import Journal, JournalLog

FOUND = "__CURSOR=c\n_STREAM_ID=abc\n\n"


def journal(folder: Path, script: str, journald: str = "/nowhere") -> Journal:
    """Return a journal whose journalctl is this shell script."""
    program = folder / "journalctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Journal({"PATH": f"{folder}:/usr/bin:/bin", "INVOCATION_ID": "1234"}, "me", journald)


def test_without_journalctl(tmp_path: Path) -> None:
    """Nothing is read, and the reason is at hand."""
    nothing = Journal({"PATH": str(tmp_path)}, "me")
    assert list(nothing.part(1)) == []
    assert nothing.unread is not None
    assert "journalctl is not installed" in nothing.unread


def test_a_part_is_found_by_its_first_line(tmp_path: Path) -> None:
    """Asked for by our line, of this user's; then by the stream alone, without that line."""
    script = f"""
echo "$@" >> {tmp_path}/asked
case "$*" in
  *MESSAGE=*launched*) printf '{FOUND.replace(chr(10), chr(92) + "n")}';;
  *MESSAGE=*gone*) echo gone;;
  *) echo '[vllm-supervisor] generation 3 is launched by instance me'; echo one; echo two;;
esac"""
    found = journal(tmp_path, script)
    assert b"".join(found.part(3)) == b"one\ntwo\n"
    first, last, part = (tmp_path / "asked").read_text().splitlines()
    assert first.endswith(f"_UID={os.geteuid()} MESSAGE=[vllm-supervisor] generation 3 is launched by instance me")
    assert "_STREAM_ID=abc MESSAGE=[vllm-supervisor] generation 3 is gone" in last
    assert part.endswith("_STREAM_ID=abc")
    assert found.unread is None


def test_a_journal_that_hangs_costs_its_time_and_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up, and killed."""
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.2)
    begun = time.monotonic()
    assert journal(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000").stream(1) is None
    assert time.monotonic() - begun < 20
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path("/proc", pid).exists()


@pytest.mark.asyncio
async def test_what_a_journal_that_is_not_ours_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first line that does not appear in time shows that we may not read; clients are told what would help."""
    monkeypatch.setattr(module, "_APPEARS", 0.0)
    closed = journal(tmp_path, "exit 0")
    log = JournalLog(closed, 1)
    assert await log.read() == []
    assert log.unread is not None
    assert "SupplementaryGroups=systemd-journal" in (await closed.why_unread() or "")


@pytest.mark.asyncio
@pytest.mark.parametrize(("script", "readable"), [("echo found", True), ("exit 1", False)])
async def test_what_we_write_comes_back_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, readable: bool
) -> None:
    """Before any engine: a line of ours is written once, and looked for; what is known is not asked again."""
    monkeypatch.setattr(module, "_PROVES", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(tmp_path / "journald"))
        journald.settimeout(20)
        found = journal(tmp_path, f'echo "$@" > {tmp_path}/asked; {script}', str(tmp_path / "journald"))
        assert (await found.why_unread() is None) == readable
        written = journald.recv(4096).decode()
        assert (await found.why_unread() is None) == readable
        journald.setblocking(False)
        with pytest.raises(BlockingIOError):
            journald.recv(1)
    line = written.splitlines()[0]
    assert "instance me" in line
    assert line in (tmp_path / "asked").read_text(), "the very line is looked for"


@pytest.mark.asyncio
async def test_a_journald_that_takes_nothing_proves_nothing(tmp_path: Path) -> None:
    """Nobody knows then whether it can be read: it is not claimed that it cannot."""
    assert await journal(tmp_path, "exit 1", str(tmp_path / "absent")).why_unread() is None


@pytest.mark.asyncio
async def test_a_start_is_read_on_from_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look begins after the cursor of the one before; bars come in pieces."""
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    script = f"""
case "$*" in
  *MESSAGE=*) printf '{FOUND.replace(chr(10), chr(92) + "n")}';;
  *after-cursor=first*) echo three; echo '-- cursor: second';;
  *after-cursor=second*) ;;
  *) echo one; printf 'bar 1%%\\rbar 2%%\\n'; echo '-- cursor: first';;
esac"""
    log = JournalLog(journal(tmp_path, script), 1)
    assert await log.read() == ["one", "bar 1%", "bar 2%"]
    assert await log.read() == ["three"]
    assert await log.read() == []
    assert await log.read() == []


@pytest.mark.asyncio
async def test_a_follower_that_leaves_takes_journalctl_along(tmp_path: Path) -> None:
    """Closing the stream kills the child that feeds it."""
    follower = journal(tmp_path, f"echo $$ > {tmp_path}/pid; echo line; exec sleep 1000").follow(1)
    with anyio.fail_after(20):
        assert await anext(follower) == b"line\n"
    await follower.aclose()
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not Path(f"/proc/{pid}").exists(), what="journalctl is gone")


def test_a_part_whose_end_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is read after a while, from the first line on, in whatever pieces it comes."""
    monkeypatch.setattr(module, "_SETTLES", 0.2)
    line = "[vllm-supervisor] generation 3 is launched by instance me"
    script = f"""
case "$*" in
  *MESSAGE=*launched*) printf '__CURSOR=c\\n_STREAM_ID=abc\\n\\n';;
  *MESSAGE=*gone*) ;;
  *) printf '%s' '{line[:20]}'; sleep 0.1; echo '{line[20:]}'; echo one;;
esac"""
    assert b"".join(journal(tmp_path, script).part(3)) == b"one\n"


def test_a_part_that_is_shorter_than_our_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is lost: a flood may have pushed our line out of what is read."""
    monkeypatch.setattr(module, "_SETTLES", 0.2)
    script = """
case "$*" in
  *MESSAGE=*launched*) printf '__CURSOR=c\\n_STREAM_ID=abc\\n\\n';;
  *MESSAGE=*gone*) echo gone;;
  *) echo end;;
esac"""
    assert b"".join(journal(tmp_path, script).part(3)) == b"end\n"


def test_a_flood_between_two_looks_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many lines as a look takes: the last ones are read instead, and so is the place behind them."""
    monkeypatch.setattr(module, "_LOOK", 2)
    script = """
case "$*" in
  *--after-cursor=old*) printf 'a\\nb\\n-- cursor: middle\\n';;
  *--after-cursor=new*) printf 'c\\n-- cursor: newer\\n';;
  *--after-cursor=cut*) printf 'c\\n';;
  *) printf 'y\\nz\\n-- cursor: last\\n';;
esac"""
    found = journal(tmp_path, script)
    assert found.since("_STREAM_ID=abc", "old") == ([b"y", b"z"], "last")
    assert found.since("_STREAM_ID=abc", "new") == ([b"c"], "newer")
    assert found.since("_STREAM_ID=abc", "cut") == ([b"c"], "cut"), "given up in the middle: on from where it was"


@pytest.mark.asyncio
async def test_clients_read_what_is_of_this_service(tmp_path: Path) -> None:
    """The last lines, of this invocation alone; without journalctl there is nothing to follow."""
    found = journal(tmp_path, f'echo "$*" >> {tmp_path}/asked; echo one')
    assert await found.tail(7) == b"one\n"
    assert [piece async for piece in found.follow(3)] == [b"one\n"]
    tail, follow = (tmp_path / "asked").read_text().splitlines()
    assert tail.endswith("-n 7 SYSLOG_IDENTIFIER=vllm _SYSTEMD_INVOCATION_ID=1234")
    assert "-f" in follow.split()
    assert follow.endswith("-n 3 SYSLOG_IDENTIFIER=vllm _SYSTEMD_INVOCATION_ID=1234")
    nothing = Journal({"PATH": str(tmp_path / "none")}, "me")
    assert [piece async for piece in nothing.follow(3)] == []
