"""`diagnose`: statuses, both outputs, whatever the log is like."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import sys
from pathlib import Path

import pytest

from vllm_supervisor.cli.main import main

FAILED = (
    "INFO 03-02 08:00:00 api_server.py:528] vLLM API server version 0.6.1\n"
    "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).\n"
)
HEALTHY = "INFO:     Application startup complete.\n"
KEYS = ["class", "retry", "summary", "evidence", "line", "action", "secondary"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log that shows a failure."""
    path = tmp_path / "vllm.log"
    path.write_text(FAILED)
    return path


def test_a_cause(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0; class, verdict, evidence with its line, remedy, and where to read more."""
    assert main(["diagnose", str(log)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tensor_parallel_divisibility (permanent): ")
    assert "line 2: ValueError: Total number of attention heads (28)" in out
    assert "--tensor-parallel-size to one of 1, 2, 4, 7, 14" in out
    assert out.endswith("vllm-supervisor explain tensor_parallel_divisibility\n")


def test_a_cause_as_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the agreed keys, the option before or after the command."""
    for argv in (["diagnose", "--json", str(log)], ["--json", "diagnose", str(log)]):
        assert main(argv) == 0
        found = json.loads(capsys.readouterr().out)
        assert list(found) == KEYS
        assert (found["class"], found["retry"], found["line"]) == ("tensor_parallel_divisibility", "permanent", 2)
        assert found["secondary"] == []


def test_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1; class and retry are null."""
    path = tmp_path / "vllm.log"
    path.write_text(HEALTHY)
    assert main(["diagnose", str(path)]) == 1
    assert capsys.readouterr().out == "no failure found in this log\n"
    assert main(["diagnose", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found) == KEYS
    assert found["class"] is found["retry"] is found["line"] is None


def test_several_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last one is answered for; that an earlier one failed is a note beside, and none in JSON."""
    path = tmp_path / "vllm.log"
    path.write_text(FAILED + FAILED.splitlines()[0] + "\n" + HEALTHY)
    assert main(["diagnose", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == "no failure found in this log\n"
    assert err.startswith("vllm-supervisor: note: the last start in this log got ready, an earlier one failed: ")
    assert "(tensor_parallel_divisibility, line 2)" in err
    assert main(["diagnose", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert (json.loads(out)["class"], err) == (None, "")
    path.write_text(FAILED + FAILED.splitlines()[0] + "\n")
    assert main(["diagnose", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("tensor_parallel_divisibility ")
    assert "neither got ready nor failed; this is why the one before failed" in err


def test_the_exit_status_is_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """139 is a segmentation fault; 137 alone proves nothing."""
    path = tmp_path / "vllm.log"
    path.write_text(HEALTHY)
    assert main(["diagnose", str(path), "--exit-code", "139"]) == 0
    assert capsys.readouterr().out.startswith("segfault ")
    assert main(["diagnose", str(path), "--exit-code=-11", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["line"] is None
    assert main(["diagnose", str(path), "--exit-code", "137"]) == 1


@pytest.mark.parametrize("what", ["missing", "a directory"])
def test_unreadable(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and one line on standard error, nothing on standard output."""
    path = tmp_path if what == "a directory" else tmp_path / "none"
    assert main(["diagnose", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"vllm-supervisor: {path}: ")
    assert captured.err.count("\n") == 1


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`kubectl logs … | vllm-supervisor diagnose -`."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FAILED.encode())))
    assert main(["diagnose", "-"]) == 0
    assert "line 2" in capsys.readouterr().out


def test_any_bytes(tmp_path: Path) -> None:
    """Neither nothing, nor a hole, nor a log without a last line break, nor broken characters are an error."""
    path = tmp_path / "x"
    for content, status in (
        (b"", 1),
        (bytes(9999), 1),
        (bytes(9999) + FAILED.encode(), 0),
        (b"\xff\xfe\n" + FAILED.encode().strip(), 0),
    ):
        path.write_bytes(content)
        assert main(["diagnose", str(path)]) == status


GZIPPED = gzip.compress(FAILED.encode())


@pytest.mark.parametrize(
    "content",
    [
        GZIPPED,
        gzip.compress(FAILED[:70].encode()) + gzip.compress(FAILED[70:].encode()) + bytes(100),
        GZIPPED[:-5],
        FAILED.encode("utf-16"),
        codecs.BOM_UTF16_BE + FAILED.encode("utf-16-be"),
        gzip.compress(("\n" * 20_000 + FAILED).encode("utf-16")),
    ],
    ids=["gzip", "two members and padding", "cut gzip", "utf-16", "utf-16 the other way", "both"],
)
def test_what_is_packed_or_wide_is_read(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same answer as for the text, from a file or a pipe."""
    path = tmp_path / "x"
    path.write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for argument in (str(path), "-"):
        assert main(["diagnose", argument, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["class"] == "tensor_parallel_divisibility"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(range(256)) * 99, "it is no text but binary data"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00\x01" * 50, "it is no text but binary data"),
        (lzma.compress(FAILED.encode()), "it is compressed (xz): xzcat FILE | vllm-supervisor diagnose -"),
        (bz2.compress(FAILED.encode()), "bzcat"),
        (GZIPPED[:20] + b"~~~~" + GZIPPED[24:], "its gzip data is damaged"),
        (gzip.compress(bytes(range(256)) * 99), "it is no text but binary data"),
    ],
)
def test_what_is_no_text_is_refused(
    tmp_path: Path, content: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, one line that says what it is, nothing on standard output."""
    path = tmp_path / "x"
    path.write_bytes(content)
    assert main(["diagnose", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"vllm-supervisor: {path}: ")
    assert words in err
    assert err.count("\n") == 1


def test_an_exit_without_a_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An exit code that no line explains is named."""
    plain = tmp_path / "vllm.log"
    plain.write_text("INFO 11-29 10:00:00 [x.py:1] nothing to see\n")
    assert main(["diagnose", str(plain), "--exit-code", "3"]) == 1
    assert "it ended with 3, and the log does not show why" in capsys.readouterr().out
