"""VLLM::EngineCore: owns the workers, schedules, and steps; a separate process, so that it can freeze or die alone."""

import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

from vllm_supervisor.simulator.args import ServeArgs
from vllm_supervisor.simulator.knobs import Knobs
from vllm_supervisor.simulator.lines import Log
from vllm_supervisor.simulator.link import Link
from vllm_supervisor.simulator.processes import fork
from vllm_supervisor.simulator.scheduler import Job, Scheduler
from vllm_supervisor.simulator.titles import retitle
from vllm_supervisor.simulator.worker import STEP, Member, run_stray, run_worker

BLOCK_SIZE = 16
_KV_BYTES_PER_TOKEN = 131072
_STEP_TIMEOUT = 300.0
"""VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS' default: how long a step may take before the engine gives itself up."""


class Settings(NamedTuple):
    """What every part of the tree works from."""

    args: ServeArgs
    knobs: Knobs
    environ: Mapping[str, str]


class EngineCore:
    """The engine process, from its first line to its end."""

    def __init__(self, settings: Settings, link: Link, tracker: socket.socket) -> None:
        self._settings = settings
        self._link = link
        self._tracker = tracker
        self._log = Log("EngineCore")
        self._scheduler = Scheduler(settings.args.max_num_seqs, settings.knobs.kv_tokens)
        self._workers: list[tuple[int, socket.socket]] = []
        self._orphaned = False
        self._ready_at = 0.0
        self._preemptions = 0
        self._step_timeout = float(settings.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS") or _STEP_TIMEOUT)

    def run(self) -> int:
        """Start the workers, wait for the weights, serve. Returns the exit status."""
        args, knobs, environ = self._settings
        retitle("VLLM::EngineCore", environ)
        if knobs.lose_first_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begun = time.monotonic()
        self._log.info(
            "core.py:133",
            f"Initializing a V1 LLM engine (v0.32.0) with config: model='{args.model}', "
            f"max_seq_len={args.max_model_len}, tensor_parallel_size={args.tensor_parallel_size}, "
            f"served_model_name={args.name}",
        )
        self._start_workers()
        if not self._loaded():
            return 1
        self._announce(time.monotonic() - begun)
        if knobs.lose_first_sigterm and not knobs.ignore_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._ready_at = time.monotonic()
        self._link.send({"ready": True})
        return self._serve()

    def _start_workers(self) -> None:
        args, knobs, environ = self._settings
        for rank in range(args.tensor_parallel_size):
            ours, theirs = socket.socketpair()
            member = Member(args.model, rank, args.tensor_parallel_size, knobs, environ)
            others = [end for _, end in self._workers]
            pid = fork(
                knobs,
                member.name,
                lambda member=member, theirs=theirs: run_worker(member, theirs),  # type: ignore[misc]  # bound now
                (ours, self._link.sock, *others),
            )
            theirs.close()
            self._workers.append((pid, ours))
        if knobs.worker_setsid:
            run_stray(knobs, environ, (self._link.sock, self._tracker, *(end for _, end in self._workers)))
        self._link.send({"workers": [pid for pid, _ in self._workers]})

    def _loaded(self) -> bool:
        for pid, end in self._workers:
            if not _answer(end, None):
                self._log.error(
                    "core.py:1470",
                    "EngineCore failed to start.\nTraceback (most recent call last):\n"
                    f"Exception: WorkerProc initialization failed due to an exception in a background process "
                    f"(pid {pid}). See stack trace for root cause.",
                )
                return False
        return True

    def _announce(self, took: float) -> None:
        args, knobs, _ = self._settings
        gib = knobs.kv_tokens * _KV_BYTES_PER_TOKEN / 2**30
        self._log.info("gpu_worker.py:760", f"Available KV cache memory: {gib:.2f} GiB")
        self._log.info(
            "kv_cache_utils.py:2327",
            f"GPU KV cache size: {knobs.kv_tokens:,} tokens, Maximum concurrency for {args.max_model_len:,} tokens "
            f"per request: {knobs.kv_tokens / args.max_model_len:.2f}x",
        )
        self._log.info("core.py:402", f"init engine (profile, create kv cache, warmup model) took {took:.2f} s")

    def _serve(self) -> int:
        pace = 1 / self._settings.knobs.tokens_per_second
        next_step = 0.0
        while True:
            if self._fault_due():
                return 1
            now = time.monotonic()
            if not self._scheduler.busy:
                timeout = self._next_fault(now)
            elif now < next_step:
                timeout = next_step - now
            else:
                if not self._step():
                    return 1
                next_step = max(next_step + pace, now)
                timeout = 0.0
            ends = [end for _, end in self._workers]
            watched = ends if self._orphaned else [*ends, self._link.sock]
            readable, _, _ = select.select(watched, [], [], timeout)
            # A worker has nothing to say between steps: what can be read is its end.
            dead = next((pid for pid, end in self._workers if end in readable), None)
            if dead is not None:
                return self._worker_died(dead)
            if self._link.sock in readable:
                self._hear()

    def _hear(self) -> None:
        messages = self._link.receive()
        if messages is None:
            # Nothing tells vLLM's EngineCore that its API server is gone: it lives on for ever (measured, 0.32).
            self._orphaned = True
            return
        for message in messages:
            if "abort" in message:
                self._scheduler.abort(message["abort"])
                self._report((), 0, stepped=False)
            else:
                self._scheduler.add(Job(message["id"], message["prompt"], message["limit"], message["reason"]))

    def _step(self) -> bool:
        for pid, end in self._workers:
            try:
                end.sendall(STEP)
                if not _answer(end, self._step_timeout):
                    self._worker_died(pid)
                    return False
            except TimeoutError:
                self._fatal(f"TimeoutError: RPC call to sample_tokens timed out after {self._step_timeout} s.")
                return False
            except OSError:
                self._worker_died(pid)
                return False
        step = self._scheduler.step()
        if step.prompt_tokens:
            time.sleep(self._settings.knobs.prefill_seconds)
        self._preemptions += step.preempted
        self._report(step.outputs, step.prompt_tokens, stepped=True)
        return True

    def _report(self, outputs: tuple[tuple[str, str | None], ...], prompt_tokens: int, *, stepped: bool) -> None:
        if self._orphaned:
            return
        sent = self._link.send(
            {
                "outputs": outputs,
                "running": self._scheduler.running,
                "waiting": self._scheduler.waiting,
                "kv": self._scheduler.kv_usage,
                "prompt_tokens": prompt_tokens,
                "preemptions": self._preemptions,
                "stepped": stepped,
            }
        )
        self._orphaned = not sent

    def _worker_died(self, pid: int) -> int:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._log.error(
            "multiproc_executor.py:315",
            f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code}), shutting down executor.",
        )
        self._fatal("RuntimeError: Executor failed.")
        return 1

    def _fatal(self, why: str) -> None:
        self._log.error(
            "core.py:1512", f"EngineCore encountered a fatal error.\nTraceback (most recent call last):\n{why}"
        )

    def _next_fault(self, now: float) -> float | None:
        knobs = self._settings.knobs
        after = [s for s in (knobs.engine_death_after, knobs.worker_death_after, knobs.freeze_after) if s is not None]
        return max(0.0, self._ready_at + min(after) - now) if after else None

    def _fault_due(self) -> bool:
        """Carry out what is due; True when the engine is to die of it."""
        knobs = self._settings.knobs
        age = time.monotonic() - self._ready_at
        if knobs.freeze_after is not None and age >= knobs.freeze_after:
            # A call that hangs inside the driver lets no Python handler run: SIGTERM has no effect either.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                signal.pause()
        if knobs.worker_death_after is not None and age >= knobs.worker_death_after:
            os.kill(self._workers[0][0], signal.SIGKILL)
            select.select([self._workers[0][1]], [], [])
            self._worker_died(self._workers[0][0])
            return True
        if knobs.engine_death_after is not None and age >= knobs.engine_death_after:
            self._fatal("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
            return True
        return False


def _answer(end: socket.socket, timeout: float | None) -> bool:
    """Wait for one byte of a worker; False when it is gone. Raises TimeoutError."""
    end.settimeout(timeout)
    try:
        return bool(end.recv(1))
    except ConnectionError:
        return False
    finally:
        end.settimeout(None)
