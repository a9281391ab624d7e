"""What stands around a line is taken off, and nothing else."""

import pytest

from vllm_supervisor.domain.diagnosis.lines import MAX_LINE, normalise, parts


@pytest.mark.parametrize(
    ("raw", "level", "body"),
    [
        ("INFO 10-24 13:20:01 api_server.py:528] text", "INFO", "text"),
        ("ERROR 10-24 13:20:01 [core.py:708] text", "ERROR", "text"),
        ("(EngineCore_DP0 pid=212) CRITICAL 10-24 13:20:01 [core.py:708] text", "CRITICAL", "text"),
        ("(APIServer pid=1) (EngineCore_DP0 pid=9) INFO:     text", "INFO", "text"),
        ("\x1b[0;36m(Worker_TP0 pid=3)\x1b[0;0m text", None, "text"),
        ("[rank0]:[W1224 08:50:36.247935068 ProcessGroupNCCL.cpp:1524] text", "WARNING", "text"),
        ("[E1224 08:50:36.247935068 ProcessGroupNCCL.cpp:616] text", "ERROR", "text"),
        ("vllm-1  | 2025-11-29T19:31:52Z (APIServer pid=1) ERROR 10-24 13:20:01 [a/b.py:7] text", "ERROR", "text"),
        ("2025-11-29T19:31:52.1+00:00 stdout F INFO 10-24 13:20:01 [a.py:7] text", "INFO", "text"),
        ("2025-01-01 10:00:00,123 ERROR worker.py:409 -- text", "ERROR", "worker.py:409 -- text"),
        ("app=vllm host=x WARNING 10-24 13:20:01 [a.py:7] text", "WARNING", "text"),
        ("  | ValueError: text", None, "ValueError: text"),
        ("ValueError: text", None, "ValueError: text"),
        ("vllm-0 engine INFO 10-24 13:20:01 [a.py:7] text", "INFO", "text"),
        ("vllm-0 engine torch.OutOfMemoryError: text", None, "torch.OutOfMemoryError: text"),
        ('vllm-0 engine   File "/x.py", line 1, in f', None, '  File "/x.py", line 1, in f'),
        ("vllm-6d4b75cb6d-hwqx9 engine text", None, "text"),
        ("gpu-0 worker died", None, "gpu-0 worker died"),
        ("Error in x", None, "Error in x"),
        ("    indented", None, "    indented"),
    ],
)
def test_wrapping(raw: str, level: str | None, body: str) -> None:
    """Level and text of the shapes of every era."""
    line = normalise(raw)
    assert (line.level, line.body) == (level, body)


def test_json_records() -> None:
    """vLLM's own formatter bears the level; a collector's level says nothing about the line."""
    own = '{"asctime": "x", "levelname": "ERROR", "message": "EngineCore failed\\nTraceback"}'
    assert [normalise(part).level for part in parts(own)] == ["ERROR", "ERROR"]
    foreign = '{"level": "info", "msg": "ERROR 10-24 13:20:01 [core.py:708] text"}'
    assert next(normalise(part) for part in parts(foreign)).level == "ERROR"
    assert parts('{"neither": 1}') == ['{"neither": 1}']
    assert parts("{broken") == ["{broken"]


def test_progress_bars_and_length() -> None:
    """A bar's updates are lines; a line is cut."""
    assert parts("10%\r20%\rtext") == ["10%", "20%", "text"]
    assert len(parts("x" * 10 * MAX_LINE)[0]) == MAX_LINE


def test_wrapping_without_end() -> None:
    """Eight layers are more than any collector puts around a line; what is within more of them stays as it is."""
    assert normalise("(APIServer pid=1) " * 8 + "text").body == "text"
    assert normalise("(APIServer pid=1) " * 10_000 + "text").body == ("(APIServer pid=1) " * 9_992 + "text")
