"""All explanations, by class."""

from vllm_supervisor.domain.diagnosis.explain_cluster import CLUSTER
from vllm_supervisor.domain.diagnosis.explain_config import CONFIG
from vllm_supervisor.domain.diagnosis.explain_engine import ENGINE
from vllm_supervisor.domain.diagnosis.explain_gpu import GPU
from vllm_supervisor.domain.diagnosis.explain_hub import HUB
from vllm_supervisor.domain.diagnosis.explain_memory import MEMORY
from vllm_supervisor.domain.diagnosis.explanation import Explanation

EXPLANATIONS: dict[str, Explanation] = {
    explanation.cls: explanation for explanation in (*MEMORY, *GPU, *CLUSTER, *HUB, *CONFIG, *ENGINE)
}
"""One for each class of the vocabulary."""
