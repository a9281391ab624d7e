"""Checks of a number format against the cards: what a quantization needs, and where FP8 is only a storage format."""

from collections.abc import Iterator

from vllm_supervisor.domain.capacity.capability import LEAST
from vllm_supervisor.domain.doctor.cards import used
from vllm_supervisor.domain.doctor.facts import Card, Facts, Model, ModelConfig, Unknown
from vllm_supervisor.domain.doctor.finding import Finding, fail, ok, skip, warn

_VOLTA, _AMPERE, _ADA = (7, 0), (8, 0), (8, 9)
_TYPES = {"bfloat16": _AMPERE}


def quantization_of(facts: Facts) -> str | None:
    """Return the method asked for, else the one in the model's own configuration; None for neither, or unknown."""
    if facts.wanted.quantization is not None:
        return facts.wanted.quantization
    config = facts.model.config if isinstance(facts.model, Model) else None
    return config.quantization if isinstance(config, ModelConfig) else None


def capability(facts: Facts) -> Iterator[Finding]:
    """Say whether the cards have what the number formats asked for need."""
    name, cards = "capability", _known(facts)
    if isinstance(cards, Unknown):
        yield skip(name, cards.why)
        return
    card, has = min(cards, key=lambda pair: pair[1])
    method, dtype = quantization_of(facts), facts.wanted.dtype
    here = f"GPU {card.index} {card.name} has {_text(has)}"
    if has < _VOLTA:
        yield fail(name, f"{here}, vLLM needs {_text(_VOLTA)}", "use another GPU")
    elif dtype in _TYPES and has < _TYPES[dtype]:
        why = f"{here}, --dtype {dtype} needs {_text(_TYPES[dtype])}"
        yield fail(name, why, "set --dtype half in engine.vllm.extra_args")
    elif method is None:
        yield ok(name, f"{_text(has)}, no quantization asked for")
    elif method not in LEAST:
        yield skip(name, f"what quantization {method} needs is not known here; {here}")
    elif has < LEAST[method]:
        why = f"{here}, quantization {method} needs {_text(LEAST[method])}"
        yield fail(name, why, "choose a checkpoint in another quantization, or another GPU")
    else:
        yield ok(name, f"{_text(has)}, quantization {method} needs {_text(LEAST[method])}")


def fp8(facts: Facts) -> Iterator[Finding]:
    """Say whether FP8 is asked for on cards that cannot compute in it."""
    name, asked = "fp8", _asks_fp8(facts)
    if isinstance(facts.cards, Unknown) or not asked:
        yield skip(name, facts.cards.why) if isinstance(facts.cards, Unknown) else ok(name, "not asked for")
        return
    cards = _known(facts)
    if isinstance(cards, Unknown):
        yield skip(name, cards.why)
        return
    card, has = min(cards, key=lambda pair: pair[1])
    if has < _ADA:
        why = f"{asked} on GPU {card.index} {card.name} ({_text(has)}): before Ada (8.9) FP8 saves memory, not time"
        other = "remove --kv-cache-dtype" if asked.startswith("--kv") else "choose an AWQ, GPTQ or INT8 checkpoint"
        yield warn(name, why, f"{other}, or accept it")
    else:
        yield ok(name, f"{asked}, {_text(has)}")


def _asks_fp8(facts: Facts) -> str:
    """Return what asks for FP8, nothing where nothing does."""
    method, kv = quantization_of(facts), facts.wanted.kv_cache_dtype or ""
    if method is not None and "fp8" in method:
        return f"quantization {method}"
    if kv.startswith("fp8"):
        return f"--kv-cache-dtype {kv}"
    return f"the model {facts.wanted.model}" if "fp8" in facts.wanted.model.lower() else ""


def _known(facts: Facts) -> list[tuple[Card, tuple[int, int]]] | Unknown:
    """Return the cards that will be used with their capabilities."""
    cards = used(facts)
    if isinstance(cards, Unknown):
        return cards
    known = [(card, card.capability) for card in cards if card.capability is not None]
    return known or Unknown("no GPU is visible" if not cards else "the driver does not say the compute capability")


def _text(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"
