"""What a start printed of memory, remembered for the next one like it."""

import pytest

from vllm_supervisor.domain.capacity.measured import MAX_KEPT, Key, Measured, Memory, gpu_key, measured
from vllm_supervisor.domain.startup.figures import StartupFigures

KEY = Key("m", "abc", "0.32.0", "1 H100")


def test_what_a_start_printed_is_taken_over_in_bytes() -> None:
    """GiB become bytes, each figure its own; vLLM's count of tokens and requests stays as it is."""
    figures = StartupFigures(
        weights_gib=1.5,
        kv_cache_gib=0.25,
        graph_gib=0.0,
        kv_cache_tokens=4096,
        max_concurrency=2.5,
        request_tokens=1024,
    )
    assert measured(figures) == Measured(3 << 29, 1 << 28, 0, 4096, 2.5, 1024)


def test_what_was_not_printed_is_not_known() -> None:
    """Nor is a figure below zero: vLLM prints such where the memory of others went while it measured."""
    assert measured(StartupFigures(kv_cache_gib=-0.5)) == Measured()


@pytest.mark.parametrize(
    ("figures", "useful"),
    [
        (Measured(), False),
        (Measured(weights=1), True),
        (Measured(kv_cache=1), True),
        (Measured(tokens=1), True),
        (Measured(graphs=1, concurrency=1, request_tokens=1), False),
    ],
    ids=["nothing", "weights", "cache", "tokens", "the rest"],
)
def test_what_replaces_an_estimate(figures: Measured, useful: bool) -> None:
    """Weights, the room for requests, or its tokens."""
    assert figures.useful is useful


@pytest.mark.parametrize(
    ("names", "key"),
    [((), "none"), (("L4",), "1 L4"), (("L4", "H100", "L4"), "1 H100, 2 L4")],
    ids=["none", "one", "mixed"],
)
def test_a_host_is_known_by_its_cards(names: tuple[str, ...], key: str) -> None:
    """In whatever order they are listed."""
    assert gpu_key(names) == key


def test_the_latest_start_like_this_one_is_found() -> None:
    """Same model, arguments and cards; of the version asked for, else of any; a local version is the released one."""
    memory = Memory()
    for number, (arguments, version) in enumerate([("abc", "0.31.0"), ("abc", "0.32.0"), ("abc", None), ("x", "0.33")]):
        memory = memory.with_start(KEY._replace(arguments=arguments, vllm_version=version), Measured(weights=number))

    def found(**changes: str | None) -> int | None:
        asked: dict[str, str | None] = {"model": "m", "arguments": "abc", "gpu": "1 H100", "vllm_version": None}
        one = memory.latest(**(asked | changes))  # type: ignore[arg-type]  # three of them are never None
        return one[1].weights if one else None

    assert found() == 2
    assert found(vllm_version="0.31.0") == 0
    assert found(vllm_version="0.32.0+cpu") == 1
    assert found(vllm_version="0.30.0") is None
    assert found(model="other") is None
    assert found(gpu="2 H100") is None
    assert found(arguments="x") == 3


def test_the_latest_start_replaces_the_one_like_it_and_the_oldest_go() -> None:
    """So many are kept, one of each kind."""
    memory = Memory().with_start(KEY, Measured(weights=1)).with_start(KEY, Measured(weights=2))
    assert memory.starts == ((KEY, Measured(weights=2)),)
    for number in range(MAX_KEPT):
        memory = memory.with_start(KEY._replace(model=str(number)), Measured())
    assert [key.model for key, _ in memory.starts] == [str(number) for number in range(MAX_KEPT)]
