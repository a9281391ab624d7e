"""vllm-supervisor: the daemon that owns `vllm serve`."""

__version__ = "0.1.0"
