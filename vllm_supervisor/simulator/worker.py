"""VLLM::Worker: loads the weights, then answers each step; ends when the EngineCore's end of the socket closes."""

import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

from vllm_supervisor.simulator.download import download
from vllm_supervisor.simulator.knobs import Knobs
from vllm_supervisor.simulator.lines import ERR, Log, put, shard_bar
from vllm_supervisor.simulator.processes import fork
from vllm_supervisor.simulator.titles import retitle

LOADED, STEP, STEPPED = b"L", b"s", b"k"
_GRAPHS = 10


class Member(NamedTuple):
    """What a worker has to know."""

    model: str
    rank: int
    ranks: int
    knobs: Knobs
    environ: Mapping[str, str]

    @property
    def name(self) -> str:
        """vLLM's name for it: `Worker` alone, `Worker_TP0` among several."""
        return "Worker" if self.ranks == 1 else f"Worker_TP{self.rank}"


def run_worker(member: Member, engine: socket.socket) -> int:
    """Live as a worker until the engine is gone. Returns the exit status."""
    retitle(f"VLLM::{member.name}", member.environ)
    vllm_log = Log(member.name)
    if member.knobs.worker_setsid and member.rank == member.ranks - 1:
        os.setsid()
    if member.knobs.lose_first_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _load(member, vllm_log, engine)
    if member.knobs.lose_first_sigterm and not member.knobs.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        engine.sendall(LOADED)
        while engine.recv(1):
            engine.sendall(STEPPED)
    except OSError:
        pass
    vllm_log.info("multiproc_executor.py:843", "Parent process exited, terminating worker queues")
    return 0


def _load(member: Member, vllm_log: Log, engine: socket.socket) -> None:
    first = member.rank == 0
    if first:
        vllm_log.info(
            "parallel_state.py:2350",
            f"rank 0 in world size {member.ranks} is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, "
            "ETP rank 0, EP rank N/A, EPLB rank N/A",
        )
        vllm_log.info("gpu_model_runner.py:5040", f"Starting to load model {member.model}...")
    if member.knobs.non_utf8:
        put(b"(Worker) \xff\xfe caf\xe9 \x80 not UTF-8\n")
    if first and member.knobs.download_bytes:
        download(member.model, member.knobs, member.environ, lambda seconds: _wait(engine, seconds))
    shards = max(1, member.knobs.shards)
    begun = time.monotonic()
    for done in range(shards + 1):
        if first:
            shard_bar(done, shards, time.monotonic() - begun)
        if member.knobs.never_ready and done >= shards // 2:
            # The engine's end closing is the only way out.
            engine.settimeout(None)
            engine.recv(1)
            os._exit(0)
        if done < shards:
            _wait(engine, begun + member.knobs.load_seconds * (done + 1) / shards - time.monotonic())
    if first:
        took = time.monotonic() - begun
        vllm_log.info("default_loader.py:501", f"Loading weights took {took:.2f} seconds")
        vllm_log.info("gpu_model_runner.py:5150", f"Model loading took 2.35 GiB memory and {took:.6f} seconds")
    _compile(first, member.knobs.compile_seconds, vllm_log, engine)
    _capture(first, member.knobs.graph_seconds, vllm_log, engine)


def _compile(first: bool, seconds: float, vllm_log: Log, engine: socket.socket) -> None:  # noqa: FBT001 - the worker's rank
    if seconds <= 0:
        return
    if first:
        where = "/home/llm/.cache/vllm/torch_compile_cache/0123456789/rank_0_0/backbone"
        vllm_log.info("backends.py:1105", f"Using cache directory: {where} for vLLM's torch.compile")
        vllm_log.info("backends.py:1167", f"Dynamo bytecode transform time: {seconds / 3:.2f} s")
    _wait(engine, seconds)
    if first:
        vllm_log.info("backends.py:399", f"Compiling a graph for compile range (1, 2048) takes {seconds / 2:.2f} s")
        vllm_log.info("monitor.py:60", f"torch.compile took {seconds:.2f} s in total")


def _capture(first: bool, seconds: float, vllm_log: Log, engine: socket.socket) -> None:  # noqa: FBT001 - as above
    if seconds <= 0:
        return
    for done in range(_GRAPHS + 1):
        if first:
            bar = f"{100 * done // _GRAPHS:3d}%|     | {done}/{_GRAPHS} [00:00<00:00]"
            put(f"\rCapturing CUDA graphs (decode, FULL): {bar}".encode(), ERR)
        if done < _GRAPHS:
            _wait(engine, seconds / _GRAPHS)
    if first:
        put(b"\n", ERR)
        vllm_log.info("gpu_model_runner.py:6586", f"Graph capturing finished in {seconds:.0f} secs, took 0.61 GiB")


def _wait(engine: socket.socket, seconds: float) -> None:
    """Let time pass, waiting on the engine rather than sleeping: a worker dies with its engine while loading, too."""
    engine.settimeout(max(1e-6, seconds))
    try:
        if not engine.recv(1):
            os._exit(0)
    except TimeoutError:
        pass
    finally:
        engine.settimeout(None)


def run_stray(knobs: Knobs, environ: Mapping[str, str], closes: tuple[socket.socket, ...]) -> None:
    """Leave behind a process that is daemonised away: own session, no parent of ours, no death pipe."""

    def daemonise() -> int:
        os.setsid()
        fork(knobs, "stray", stay)
        return 0

    def stay() -> int:
        retitle("VLLM::Worker_TP1", environ)
        while True:
            signal.pause()

    os.waitpid(fork(knobs, "daemoniser", daemonise, closes), 0)


def run_tracker(end: socket.socket) -> int:
    """Live as multiprocessing's resource tracker: deaf to SIGINT and SIGTERM, gone when all its clients are."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # It is executed anew by vLLM, not forked, so that its environment stays as it was (measured, 0.32).
    retitle(
        "python -B -c from multiprocessing.resource_tracker import main;main(32)", {"SPT_NOENV": "1"}, comm="python"
    )
    end.recv(1)
    return 0
