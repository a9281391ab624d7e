"""Explanations: the Hub, caches, files of the model."""

from vllm_supervisor.domain.diagnosis.explanation import Check, Explanation

_WHOAMI = Check("HF_TOKEN=… hf auth whoami", "whether the token is valid, and whose it is")
_CACHED = Check("ls ~/.cache/huggingface/hub", "a directory models--ORG--NAME with snapshots, if it is cached")

HUB = (
    Explanation(
        "hf_401_gated",
        "the Hub does not let this token, or no token, read the model",
        "A gated model wants a token of an account that accepted its licence. A private one wants a member's. A name "
        "that does not exist also answers 401 to whoever shows no token.",
        (
            _WHOAMI,
            Check(
                'curl -sI -H "Authorization: Bearer $HF_TOKEN" https://hf.co/ORG/NAME/resolve/main/config.json',
                "401 no token, 403 licence not accepted, 404 wrong name, 200 or 302 all well",
            ),
        ),
        (
            (
                "accept the licence on the model's page and set HF_TOKEN for the service (`env` with "
                "${credential:NAME}, "
                "or an environment file)"
            ),
            "check the name: without a token a typing error looks the same",
            "the token must be the service's: one stored by `hf auth login` belongs to your own home",
        ),
    ),
    Explanation(
        "hf_offline",
        "the Hub cannot be reached, and the cache does not hold what is needed",
        "No network, a proxy, an outage of the Hub, or HF_HUB_OFFLINE=1 with an incomplete cache. vLLM asks the Hub at "
        "every start, also for a cached model, unless told to stay offline.",
        (
            Check("curl -sI https://huggingface.co", "no answer: network, proxy or outage"),
            _CACHED,
            Check(
                "systemctl show UNIT -p Environment | tr ' ' '\\n' | grep -E 'HF_|proxy'",
                "the service's cache directory and proxies, which may not be your shell's",
            ),
        ),
        (
            (
                "download the model once as the service's user (`hf download ORG/NAME`), then set HF_HUB_OFFLINE=1 in "
                "`env`; or give the host its way to the Hub (HTTPS_PROXY, HF_ENDPOINT)"
            ),
            "`Cache directory not found`: create HF_HOME, or mount it",
        ),
    ),
    Explanation(
        "hf_rate_limit",
        "the Hub answers 429: too many requests",
        "The limit counts per address, and per account with a token. Many engines behind one address, or a restart "
        "loop, "
        "exhaust it; each start costs requests even where everything is cached.",
        (_WHOAMI, _CACHED),
        (
            (
                "wait (restarts back off by themselves); set HF_TOKEN for a higher limit, and HF_HUB_OFFLINE=1 in "
                "`env` "
                "once the model is cached"
            ),
        ),
    ),
    Explanation(
        "model_not_found",
        "there is no such model, path or revision",
        "The name is mistyped, the revision does not exist, or a local path is not there for the engine's user: vLLM "
        "then "
        "takes it for a repository's name and complains about its form. In a container, the host's path does not "
        "exist.",
        (
            Check("sudo -u USER ls MODEL_PATH/config.json", "no such file, or no permission"),
            Check("curl -sI https://huggingface.co/ORG/NAME", "404 for a name that does not exist"),
            Check("curl -s 127.0.0.1:8000/v1/models", "the names that the engine answers to"),
        ),
        (
            "correct `engine.vllm.model`: an existing path (mounted into the container), or the exact name on the Hub",
            (
                "a client's 404 is something else: it asked for a name other than the served one; use one of "
                "/v1/models, "
                "--served-model-name, or `model_aliases`"
            ),
        ),
    ),
    Explanation(
        "weights_corrupt",
        "a weight file is damaged or incomplete",
        "An interrupted download, a bad copy, a full disk at the time, or a bad upload.",
        (
            Check(
                "ls -l MODEL_PATH/*.safetensors",
                "a file much smaller than its siblings, or a git-lfs pointer of 130 bytes",
            ),
            Check("python -c \"from safetensors import safe_open; safe_open('FILE', 'pt')\"", "the same error"),
        ),
        ("delete the damaged file (and *.incomplete) and download it again: `hf download ORG/NAME --force-download`",),
    ),
    Explanation(
        "permission_denied",
        "the engine's user may not read or write something it needs",
        "Caches made by root, a home that a service's user does not have, ProtectHome or ReadOnlyPaths in a unit, a "
        "volume of another user.",
        (
            Check("namei -l PATH", "the directory on the way that denies"),
            Check("systemctl show UNIT -p User,ProtectHome,ProtectSystem,ReadWritePaths", "what the unit allows"),
        ),
        (
            (
                "give the path to the service's user, or point HF_HOME, VLLM_CACHE_ROOT, TRITON_CACHE_DIR and "
                "FLASHINFER_WORKSPACE_BASE (in `env`) below its StateDirectory"
            ),
        ),
    ),
)
