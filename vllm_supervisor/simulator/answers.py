"""The bodies of vLLM 0.32's answers, field for field (measured), and what is read out of requests."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from vllm_supervisor.simulator.args import ServeArgs
from vllm_supervisor.simulator.lines import ENGINE_DEAD

Body = dict[str, Any]

FINGERPRINT = "vllm-0.32.0-simulator"
_WORDS = ("the", "engine", "hums", "and", "tokens", "come", "one", "by")


class RefusalError(Exception):
    """A request that vLLM declines, as it words it."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error(status, message, kind, param)


def error(status: int, message: str, kind: str, param: str | None = None) -> Body:
    """Return an error in vLLM's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def engine_dead() -> Body:
    """Return the answer to a request that met a dead engine."""
    return error(500, ENGINE_DEAD, "InternalServerError")


def dump(body: object) -> bytes:
    """Return `body` as uvicorn sends it: compact JSON."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def fresh_id(prefix: str) -> str:
    """Return an id as vLLM makes them: 16 hexadecimal digits."""
    return f"{prefix}-{os.urandom(8).hex()}"


def models(args: ServeArgs, created: int) -> Body:
    """Return `/v1/models`: every served name, then the LoRA modules."""
    entries = [_card(name, args.model, None, args.max_model_len, created) for name in args.served_names]
    entries += [_card(name, path, args.name, None, created) for name, path in args.loras]
    return {"object": "list", "data": entries}


def _card(name: str, root: str, parent: str | None, max_model_len: int | None, created: int) -> Body:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [
            {
                "id": fresh_id("modelperm"),
                "object": "model_permission",
                "created": created,
                "allow_create_engine": False,
                "allow_sampling": True,
                "allow_logprobs": True,
                "allow_search_indices": False,
                "allow_view": True,
                "allow_fine_tuning": False,
                "organization": "*",
                "group": None,
                "is_blocking": False,
            }
        ],
    }


def parse(data: bytes) -> Body:
    """Read a JSON object. Raises RefusalError."""
    try:
        body = json.loads(data)
    except ValueError as problem:
        where, what = getattr(problem, "pos", 0), getattr(problem, "msg", "Invalid JSON")
        text = (
            f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{where}', 'msg': 'JSON decode error', "
            f"'input': '<dict of 0 items>', 'ctx': {{'error': '{what}'}}}}"
        )
        raise RefusalError(400, text, "Bad Request", f"body.{where}") from None
    if not isinstance(body, dict):
        raise RefusalError(400, "1 validation error: Input should be a valid dictionary", "Bad Request", "body")
    return body


def check_model(body: Body, args: ServeArgs) -> str:
    """Return the name that the answer carries. Raises RefusalError when it is not served."""
    name = body.get("model") or args.name
    known = [*args.served_names, *(lora for lora, _ in args.loras)]
    if name not in known:
        hint = f" Valid aliases: {', '.join(args.served_names)}." if len(args.served_names) > 1 else ""
        raise RefusalError(404, f"The model `{name}` does not exist.{hint}", "NotFoundError", "model")
    return str(name)


def prompt_lengths(prompt: object, param: str = "prompt") -> list[int]:
    """Return the tokens of each prompt: a string, ids, or a list of either. Raises RefusalError."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return [length for item in prompt for length in prompt_lengths(item, param)]
    if isinstance(prompt, str | list) and prompt:
        return [len(prompt) if isinstance(prompt, list) else _tokens(prompt)]
    raise RefusalError(
        400,
        f"Either {param} or {param}_embeds must be provided and non-empty. (parameter={param})",
        "BadRequestError",
        param,
    )


def chat_length(messages: object) -> int:
    """Return the tokens of a conversation. Raises RefusalError."""
    if not isinstance(messages, list) or not messages:
        raise RefusalError(400, "messages must be a non-empty list", "BadRequestError", "messages")
    return sum(4 + _tokens(str(message.get("content") or "")) for message in messages if isinstance(message, dict))


def _tokens(text: str) -> int:
    return 1 + len(text) // 4


def limit(body: Body, longest_prompt: int, args: ServeArgs, default: int) -> tuple[int, str]:
    """Return how many tokens to make, and why it will end there. Raises RefusalError when they do not fit."""
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    room = args.max_model_len - longest_prompt
    if asked is None:
        if room < 1:
            raise _too_long(longest_prompt, args)
        return min(default, room), "stop" if default <= room else "length"
    if not isinstance(asked, int) or asked < 1:
        raise RefusalError(400, f"max_tokens must be at least 1, got {asked}.", "BadRequestError", "max_tokens")
    if asked > args.max_model_len:
        text = (
            f"max_tokens={asked} cannot be greater than max_model_len={args.max_model_len}. Please request fewer "
            f"output tokens. (parameter=max_tokens, value={asked})"
        )
        raise RefusalError(400, text, "BadRequestError", "max_tokens")
    if asked > room:
        raise _too_long(longest_prompt + asked, args)
    return asked, "length"


def _too_long(tokens: int, args: ServeArgs) -> RefusalError:
    text = (
        f"This model's maximum context length is {args.max_model_len} tokens. However, you requested {tokens} tokens. "
        "Please reduce the length of the input messages or completion."
    )
    return RefusalError(400, text, "BadRequestError", "input_tokens")


def word(position: int) -> str:
    """Return the text of the token at `position` of an answer."""
    return f" {_WORDS[position % len(_WORDS)]}" if position else _WORDS[0]


def usage(prompt: int, completion: int, *, details: bool = True) -> Body:
    """Return the usage object; streams carry it without the details."""
    counts: Body = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return counts | ({"prompt_tokens_details": None, "completion_tokens_details": None} if details else {})


def completion(name: str, texts: list[tuple[str, str]], counts: Body) -> Body:
    """Return the answer of `/v1/completions`; `texts` are (text, finish reason)."""
    nothing = dict.fromkeys(("token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts"))
    return {
        "id": fresh_id("cmpl"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": name,
        "choices": [
            {"index": i, "text": text, "logprobs": None, "finish_reason": why, "stop_reason": None, **nothing}
            for i, (text, why) in enumerate(texts)
        ],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": counts,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def chat(name: str, texts: list[tuple[str, str]], counts: Body) -> Body:
    """Return the answer of `/v1/chat/completions`; `texts` are (text, finish reason)."""
    silent = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
    return {
        "id": fresh_id("chatcmpl"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "choices": [
            {
                "index": i,
                "message": {"role": "assistant", "content": text, **silent},
                "logprobs": None,
                "finish_reason": why,
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
            for i, (text, why) in enumerate(texts)
        ],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": counts,
        **dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params")),
        "ec_transfer_params": None,
        "metrics": None,
    }


def completion_chunk(base: Mapping[str, Any], index: int, text: str, why: str | None, *, last: bool) -> Body:
    """Return one event of a streamed completion; the `last` of the stream carries the fingerprint."""
    choice = {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": why,
        "stop_reason": None,
        "prompt_token_ids": None,
        "token_ids": None,
    }
    return {**base, "choices": [choice], **({"system_fingerprint": FINGERPRINT} if last else {})}


def chat_chunk(base: Mapping[str, Any], index: int, text: str, why: str | None, *, last: bool) -> Body:
    """Return one event of a streamed chat completion; the `last` of the stream carries the fingerprint."""
    choice: Body = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": why}
    choice |= {"stop_reason": None, "token_ids": None} if why else {"token_ids": None}
    return {**base, "choices": [choice], **({"system_fingerprint": FINGERPRINT} if last else {})}


def chat_opening(base: Mapping[str, Any], choices: int) -> list[Body]:
    """Return the events that open a streamed chat completion: one a choice, with the role."""
    return [
        {
            **base,
            "choices": [
                {"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            ],
            "prompt_token_ids": None,
            "prompt_text": None,
        }
        for i in range(choices)
    ]


def vectors(name: str, kind: str, lengths: list[int]) -> Body:
    """Return the answer of `/v1/embeddings` (`kind` embedding) or `/pooling` (`kind` pooling)."""
    field = "embedding" if kind == "embedding" else "data"
    data: list[Body] = []
    for i, length in enumerate(lengths):
        vector = [round(((length * 31 + d * 17) % 97) / 97 - 0.5, 6) for d in range(8)]
        data.append({"index": i, "object": kind, field: vector if kind == "embedding" else [vector]})
    return {
        "id": fresh_id("embd" if kind == "embedding" else "pool"),
        "object": "list",
        "created": int(time.time()),
        "model": name,
        "data": data,
        "usage": usage(sum(lengths), 0),
    }
