"""A closed-loop load on the local engine: so many streaming requests in flight, each followed by the next."""

from vllm_supervisor.adapters.loadgen.loop import ClosedLoop
from vllm_supervisor.adapters.loadgen.stream import Seen, StreamClient

__all__ = ["ClosedLoop", "Seen", "StreamClient"]
