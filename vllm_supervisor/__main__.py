"""`python -m vllm_supervisor`."""

import sys

from vllm_supervisor.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
