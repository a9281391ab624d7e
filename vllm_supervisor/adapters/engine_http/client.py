"""The questions that the daemon asks its engine."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from vllm_supervisor.adapters.engine_http.exchange import Answer, Exchange
from vllm_supervisor.adapters.engine_http.metrics import parse
from vllm_supervisor.domain.engine import EngineMetrics, ModelList, ProbeResult, Scrape, Warmup, WarmupResult
from vllm_supervisor.domain.model import Outcome
from vllm_supervisor.domain.secret import MASK
from vllm_supervisor.domain.spec import EngineSpec

_MIB = 1 << 20
_METRICS_LIMIT = 16 * _MIB
"""Some 70 kB per data-parallel rank (0.32, measured): far beyond any host. A part would be summed up wrongly."""
_DETAIL = 200

_UNAUTHORIZED = frozenset({401, 403})
_NOT_APPLICABLE = frozenset({400, 404, 405, 422, 501})
"""How vLLM says that a model has no such endpoint; which of them it is depends on the version and the runner."""

_TINY: Mapping[str, object] = {"max_tokens": 1, "temperature": 0}
LADDER: Mapping[str, tuple[str, Mapping[str, object], str]] = MappingProxyType(
    {
        "completions": ("/v1/completions", {"prompt": "Hi", **_TINY}, "choices"),
        "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **_TINY}, "choices"),
        "embeddings": ("/v1/embeddings", {"input": "Hi"}, "data"),
        "pooling": ("/pooling", {"input": "Hi"}, "data"),
    }
)
"""Rung -> path, payload, and the list in the answer that shows that the model was run. Tried in this order."""


class HttpEngineClient:
    """Implements `ports.EngineClient` on httpx. To be closed with `aclose`.

    `rungs` limits the warm-up's ladder to some of `LADDER`, in the order given. The key is sent only where vLLM asks
    for it (0.33: `/v1`, `/v2`, `/inference`, `/cohere`), and to `/pooling`, where a proxy might. Whichever rung
    answered last is the canary's, unless `spec.canary` names one.
    """

    def __init__(self, spec: EngineSpec, rungs: Sequence[str] = tuple(LADDER)) -> None:
        self._spec = spec
        self._rungs = tuple(rungs)
        self._found: str | None = None
        self._key = spec.api_key.reveal() if spec.api_key else ""
        self._exchange = Exchange(spec.base_url, connect_timeout=spec.probe_timeout)

    async def aclose(self) -> None:
        """Close what is open."""
        await self._exchange.aclose()

    def adapt(self, spec: EngineSpec) -> None:
        """Ask as `spec` says from now on. It is about the same engine: address, key and model are as before."""
        self._spec = spec
        self._exchange.connect_timeout = spec.probe_timeout

    async def health(self) -> ProbeResult:
        """Ask the health path, for at most the probe's timeout. Only the status of the answer counts."""
        answer = await self._get(self._spec.health_path)
        return ProbeResult(answer.outcome, answer.latency, self._detail(answer), answer.status)

    async def models(self) -> ModelList:
        """Ask `/v1/models`, for at most the probe's timeout."""
        answer = await self._get("/v1/models")
        if answer.status in _UNAUTHORIZED:
            return ModelList(None, f"{self._detail(answer)}: the engine refuses the key (api_key)", answer.status)
        entries = _items(answer, "data")
        if entries is None:
            return ModelList(None, self._detail(answer) or "the answer is no list of models", answer.status)
        named = {
            entry["id"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)
        }
        length = named.get(self._spec.model, {}).get("max_model_len")
        return ModelList(tuple(named), status=answer.status, max_model_len=length if type(length) is int else None)

    async def warm_up(self) -> WarmupResult:
        """Have one token (or embedding) made by the first rung of the ladder that applies. No time limit."""
        refusals = []
        latency, status = 0.0, None
        for rung in self._rungs:
            answer = await self._run(rung)
            latency, detail = answer.latency, f"{rung}: {self._detail(answer)}"
            if _items(answer, LADDER[rung][2]):
                self._found = rung
                return WarmupResult(Warmup.SERVED, latency, rung, status=answer.status)
            if answer.status in _UNAUTHORIZED:
                told = f"{detail}: the engine refuses the key (api_key)"
                return WarmupResult(Warmup.UNAUTHORIZED, latency, rung, told, answer.status)
            if answer.status not in _NOT_APPLICABLE:
                return WarmupResult(Warmup.NOT_YET, latency, rung, detail, answer.status)
            refusals.append(detail)
            status = answer.status
        return WarmupResult(Warmup.UNSUPPORTED, latency, detail="; ".join(refusals), status=status)

    async def _run(self, rung: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask one rung, with no time limit but that of connecting."""
        path, payload, _ = LADDER[rung]
        return await self._exchange.ask(
            path,
            limit=_MIB,
            seconds=None,
            headers=self._headers(path) | dict(headers or {}),
            payload={"model": self._spec.model, **payload},
        )

    async def canary(self, rank: str | None = None) -> ProbeResult:
        """Have one token (or embedding) made; OK only when it came back. No time limit: the caller cancels.

        Where neither the configuration nor the warm-up says which rung applies, the ladder is tried, once.
        """
        headers = {"X-data-parallel-rank": rank} if rank is not None else {}
        rung = self._found if self._spec.canary == "auto" else self._spec.canary
        if rung is None:
            result = await self.warm_up()
            outcome = Outcome.OK if result.result is Warmup.SERVED else Outcome.ERROR
            return ProbeResult(outcome, result.latency, result.detail, result.status)
        answer = await self._run(rung, headers)
        detail = self._detail(answer)
        if answer.outcome is Outcome.OK and not _items(answer, LADDER[rung][2]):
            return ProbeResult(Outcome.ERROR, answer.latency, "HTTP 200 without a token", answer.status)
        return ProbeResult(answer.outcome, answer.latency, f"{rung}: {detail}" if detail else "", answer.status)

    async def metrics(self) -> EngineMetrics | None:
        """Read `/metrics`, for at most the probe's timeout; None when it could not be read, or not to its end."""
        return (await self.scrape(self._spec.probe_timeout)).metrics

    async def scrape(self, seconds: float) -> Scrape:
        """Read `/metrics`, for at most `seconds`."""
        headers = {"Accept": "text/plain; version=0.0.4"}
        answer = await self._exchange.ask("/metrics", limit=_METRICS_LIMIT, seconds=seconds, headers=headers)
        if not _is_success(answer) or not answer.whole:
            outcome = Outcome.ERROR if answer.outcome is Outcome.OK else answer.outcome
            return Scrape(outcome, detail=self._detail(answer) or "too long to be read")
        return Scrape(Outcome.OK, parse(answer.body.decode(errors="replace")))

    async def load(self) -> int | None:
        """Ask `/load`, for at most the probe's timeout; None when it does not say."""
        said = _json(await self._get("/load"))
        load = said.get("server_load") if isinstance(said, dict) else None
        return load if type(load) is int and load >= 0 else None

    async def suspended(self) -> bool | None:
        """Ask `/is_paused` and `/is_sleeping` (`VLLM_SERVER_DEV_MODE=1`), for at most the probe's timeout each."""
        exist = False
        for path, key in (("/is_paused", "is_paused"), ("/is_sleeping", "is_sleeping")):
            answer = await self._get(path)
            said = _json(answer)
            if isinstance(said, dict) and said.get(key) is True:
                return True
            exist |= answer.status not in _NOT_APPLICABLE | _UNAUTHORIZED
        return False if exist else None

    async def version(self) -> str | None:
        """Ask `/version`; None when it does not say."""
        said = _json(await self._get("/version"))
        version = said.get("version") if isinstance(said, dict) else None
        return _printable(version)[:64] if isinstance(version, str) and version else None

    async def _get(self, path: str, limit: int = _MIB, headers: Mapping[str, str] | None = None) -> Answer:
        return await self._exchange.ask(
            path, limit=limit, seconds=self._spec.probe_timeout, headers=self._headers(path) | dict(headers or {})
        )

    def _headers(self, path: str) -> dict[str, str]:
        guarded = path.startswith(("/v1", "/v2", "/inference", "/cohere", "/pooling"))
        return {"Authorization": f"Bearer {self._key}"} if self._key and guarded else {}

    def _detail(self, answer: Answer) -> str:
        """Say in a line what was wrong with an answer; empty for a good one."""
        if answer.status is None or answer.detail:
            return answer.detail
        text = "" if _is_success(answer) else _message(answer)
        text = text.replace(self._key, MASK) if self._key else text
        text = _printable(text)[:_DETAIL]
        status = f"HTTP {answer.status}"
        return f"{status}: {text}" if text else "" if _is_success(answer) else status


def _is_success(answer: Answer) -> bool:
    return answer.status is not None and 200 <= answer.status < 300  # noqa: PLR2004 - what 2xx means


def _json(answer: Answer) -> Any:
    """Return a good answer's JSON; None where there is none."""
    if not _is_success(answer) or not answer.whole:
        return None
    return _parsed(answer.body)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _items(answer: Answer, key: str) -> list[Any] | None:
    """Return the list under `key` of a good answer."""
    said = _json(answer)
    items = said.get(key) if isinstance(said, dict) else None
    return items if isinstance(items, list) else None


def _message(answer: Answer) -> str:
    """Return the reason in an error's body: vLLM says `{"error": {"message"}}`, `{"message"}` or `{"detail"}`."""
    said = _parsed(answer.body)
    if isinstance(said, dict):
        said = said.get("error") or said.get("message") or said.get("detail")
    if isinstance(said, dict):
        said = said.get("message")
    return said if isinstance(said, str) else answer.body[: 2 * _DETAIL].decode(errors="replace")


def _printable(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
