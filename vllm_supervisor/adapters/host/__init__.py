"""Looks at the host for the doctor: programs, packages, cards, files, limits. Reads only; makes and changes nothing."""

from vllm_supervisor.adapters.host.collect import Surroundings, collect
from vllm_supervisor.adapters.host.nvidia import CardReader, NvidiaSmi

__all__ = ["CardReader", "NvidiaSmi", "Surroundings", "collect"]
