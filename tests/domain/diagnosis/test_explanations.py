"""Every class is explained, and what operators asked for is there."""

import pytest

from vllm_supervisor.domain.diagnosis import CLASSES, EXPLANATIONS


def test_one_for_each_class() -> None:
    """No more, no fewer."""
    assert set(EXPLANATIONS) == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_it_is_whole(name: str) -> None:
    """Cause, a command with what it shows, a remedy, each in words that stand alone."""
    explanation = EXPLANATIONS[name]
    assert len(explanation.cause) > 60
    assert explanation.confirm
    assert all(check.command and check.shows for check in explanation.confirm)
    assert explanation.remedy
    assert "\n" not in explanation.action


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "cuda_runtime_mismatch",
            ["libcudart.so.13", "LD_LIBRARY_PATH", "find / -name 'libcudart", "torch.version.cuda"],
        ),
        ("cuda_runtime_mismatch", ["max_shared_mem > 0", "cu129", "flipped"]),
        ("cuda_driver_too_old", ["580", "12.8", "cu130", "reboot", "cu129"]),
        ("flashinfer_jit", ["VLLM_USE_FLASHINFER_SAMPLER=0", "12.9"]),
        ("oom_at_load", ["utilization", "NCCL", "sampler", "graph"]),
        ("kv_cache_too_small", ["--max-model-len", "preemption"]),
        (
            "nccl_timeout",
            ["NCCL_DEBUG=INFO", "NCCL_P2P_DISABLE=1", "/dev/shm", "--ipc=host", "upgrade NCCL", "one model"],
        ),
        ("hf_401_gated", ["licence", "HF_TOKEN"]),
        ("model_not_found", ["served-model-name", "404"]),
        ("max_model_len_error", ["rope scaling", "documents it"]),
        ("hf_rate_limit", ["429", "token", "HF_HUB_OFFLINE"]),
    ],
)
def test_it_says_what_operators_need(name: str, words: list[str]) -> None:
    """Knowledge that costs nights to find."""
    explanation = EXPLANATIONS[name]
    checks = [text for check in explanation.confirm for text in (check.command, check.shows)]
    text = " ".join((explanation.summary, explanation.cause, *checks, *explanation.remedy))
    assert [word for word in words if word.lower() not in text.lower()] == []
