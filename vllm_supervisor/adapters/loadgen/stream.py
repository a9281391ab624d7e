"""One streaming completion, and when its tokens came."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

_TOKEN_IDS = range(110, 250)
"""Ordinary tokens in every vocabulary: special ones stand at its beginning or its end."""
_EVENT = b"data: "
_DETAIL = 200


@dataclass(slots=True)
class Seen:
    """What the requests of a step saw: when (monotonic), and seconds."""

    first: list[tuple[float, float]] = field(default_factory=list)
    between: list[tuple[float, float]] = field(default_factory=list)
    finished: int = 0
    failures: list[str] = field(default_factory=list)


class StreamClient:
    """Asks `/v1/completions` for answers of a given length, to prompts that no cache has seen."""

    def __init__(self, base_url: str, model: str, key: str | None, now: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._key = key
        self._now = now
        self._random = random.SystemRandom()
        # A loopback peer proves nothing by its certificate. A stream may pause as long as a full engine lets it.
        self._http = httpx.AsyncClient(
            base_url=base_url,
            verify=False,  # noqa: S501 - see above
            trust_env=False,
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    async def aclose(self) -> None:
        """Close what is open."""
        await self._http.aclose()

    async def ask(self, prompt_tokens: int, output_tokens: int, seen: Callable[[], Seen]) -> bool:
        """Have one answer streamed, and note its times in what `seen` returns then; False where it failed."""
        body = {
            "model": self._model,
            "prompt": self._random.choices(_TOKEN_IDS, k=prompt_tokens),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        began = last = self._now()
        events = 0
        try:
            async with self._http.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    seen().failures.append(self._refusal(response.status_code, await response.aread()))
                    return False
                async for piece in response.aiter_raw():
                    count = piece.count(_EVENT) - piece.count(b"data: [DONE]")
                    if count <= 0:
                        continue
                    now = self._now()
                    if not events:
                        seen().first.append((now, now - began))
                    else:
                        # Several in a piece came at once for us: the pause before them is shared.
                        seen().between += [(now, (now - last) / count)] * count
                    events += count
                    last = now
        except httpx.HTTPError as error:
            seen().failures.append(type(error).__name__)
            return False
        if not events:
            seen().failures.append("an answer without a token")
            return False
        seen().finished += 1
        return True

    def _refusal(self, status: int, body: bytes) -> str:
        """Say in a line why a request was refused, the key taken out."""
        try:
            said = json.loads(body)
            inner = said.get("error", said)
            text = str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)
        except (ValueError, AttributeError):
            text = body[:_DETAIL].decode(errors="replace")
        text = text.replace(self._key, "***") if self._key else text
        plain = "".join(char if char.isprintable() else " " for char in text)
        return f"HTTP {status}: {' '.join(plain.split())[:_DETAIL]}"
