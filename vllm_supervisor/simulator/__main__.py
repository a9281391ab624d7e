"""`python -m vllm_supervisor.simulator serve MODEL …`."""

import sys

from vllm_supervisor.simulator.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
