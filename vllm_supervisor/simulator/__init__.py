"""A stand-in for `vllm serve`: same flags, process tree, endpoints, metrics, log lines; faults on request."""
