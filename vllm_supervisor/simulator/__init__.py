"""A stand-in for `vllm serve` 0.32: same flags, process tree, endpoints, metrics, log lines; faults on request.

usage: vllm-supervisor simulate serve MODEL [vllm flags] [--sim-NAME VALUE ...]

Every name below is a flag, `--sim-load-seconds 3`, and a variable, `SIM_LOAD_SECONDS=3`; the flag wins. Times are
seconds. What takes no value is switched on by the flag alone, or by a variable that is 1.

pace and size
  import-seconds S      silence before the first line (0)
  load-seconds S        how long the weights load (0)
  shards N              steps of the progress bar (4)
  download-bytes N      weights that come into the Hugging Face cache ($HF_HOME) first (0)
  download-seconds S    how long they take (0)
  compile-seconds S     how long torch.compile takes (0: no such lines)
  graph-seconds S       how long graphs are captured (0: no such lines)
  tokens-per-second X   of one request (200)
  prefill-seconds S     a step that takes in prompts lasts so much longer (0)
  answer-tokens N       length of an answer that sets no max_tokens (64)
  kv-tokens N           size of the KV cache; beyond it requests are preempted (65536)
  engine-exit-delay S   API server's life after its engine died, while no request meets the dead engine (5)
  max-seconds S         every process ends itself after so long (0: never)

faults while starting
  never-ready           loading stops half-way
  exit-code N           the API server exits with N
  exit-signal N         it ends by this signal: 9 as the OOM killer does it, 11 for a segmentation fault
  exit-phase P          when: import, load (default) or ready
  exit-after S          so long into that phase (0)
  replay FILE           print FILE, then exit with exit-code (1)
  lose-first-sigterm    the first SIGTERM is lost while starting, as vLLM 0.32 loses it

faults once ready
  engine-death-after S  the EngineCore dies: 503, and exit 0 after engine-exit-delay
  worker-death-after S  SIGKILL for a worker, and the same follows
  leader-sigkill-after S  SIGKILL for the API server: the rest lives on
  freeze-after S        the engine stops stepping; /health stays 200
  health-delay S        every /health takes so long
  health-hang           /health never answers
  health-status N       /health answers N
  completions-status N, chat-status N, embeddings-status N   these answer N; embeddings-status is for /pooling too
  fault-after S         the faults of /health and of statuses begin so long after ready (0)
  fault-while FILE      they hold only while FILE exists
  no-metrics            /metrics is 404

faults at any time
  ignore-sigterm        nobody of the tree heeds SIGTERM
  wait-for-streams      SIGTERM waits for open streams, as vLLM 0.32 does
  worker-setsid         one worker leaves the session; another is daemonised away and outlives everything
  log-flood MB/S        so many megabytes of log a second
  non-utf8              bytes that are no UTF-8 in the log

starts
  state-dir DIR         starts are counted in DIR/starts; every process is noted in DIR/pids as `PID NAME`
  fault-starts N        faults only in the first N starts; `M-N` or `M-` for a range
"""
