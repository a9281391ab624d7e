"""How much a model weighs, by its name alone: good for "does it fit on this disk", and for nothing finer."""

import re

_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)
_FOUR_BITS = re.compile(r"awq|gptq|4bit|int4|w4a|mxfp4|nvfp4|fp4|bnb|gpt-oss", re.IGNORECASE)
_EIGHT_BITS = re.compile(r"fp8|8bit|int8|w8a|deepseek-(v3|r1)(?!-distill)", re.IGNORECASE)
_UNITS = {"b": 10**9, "m": 10**6}


def estimate(model: str) -> int | None:
    """Return about how many bytes the weights have: parameters in the name by bytes a parameter; None without a size.

    `Llama-3.1-70B` is 140 GB, `gpt-oss-20b` 12.5 GB; `8x7B` counts eight sevens. A name such as `30B-A3B` has the
    total first.
    """
    sizes = _SIZE.findall(model.rpartition("/")[2])
    if not sizes:
        return None
    parameters = max(int(times or 1) * float(number) * _UNITS[unit.lower()] for times, number, unit in sizes)
    if _FOUR_BITS.search(model):
        return int(parameters * 0.625)
    return int(parameters * (1 if _EIGHT_BITS.search(model) else 2))
