"""Where the model comes from: the Hub, the cache, files on disk."""

from vllm_supervisor.domain.diagnosis.signature import Signature, Tier, pattern
from vllm_supervisor.domain.retry import Retry

HUB = (
    Signature(
        "hf_rate_limit",
        pattern(
            r"429 Client Error|Too Many Requests|HTTP(?: status)? 429|status[ _]code:? 429|"
            r"We had to rate limit your IP"
        ),
        "all versions; the start asks the Hub even where everything is cached",
        start_only=True,
    ),
    Signature(
        "hf_401_gated",
        pattern(
            r"(?:Cannot access gated repo for url |access a gated repo|GatedRepoError|is a gated repository|"
            r"Access to model (?P<model>\S+) is restricted)"
        ),
        "all versions",
        start_only=True,
    ),
    Signature(
        "hf_401_gated",
        pattern(
            r"40[13] Client Error|Invalid (?:username or password|user token)|401 Unauthorized|"
            r"(?<!failed: )403 Forbidden|"
            r"LocalTokenNotFoundError|Token is required|Invalid credentials in Authorization header"
        ),
        "huggingface_hub; a name that does not exist answers 401 too, to whoever shows no token",
        "set HF_TOKEN (in `env`, or as a credential) to a token whose account may read the model, and check the name: "
        "without a token the Hub answers 401 for a name that does not exist as well",
        start_only=True,
    ),
    Signature(
        "hf_offline",
        pattern(r"Tunnel connection failed: (?P<answer>\d{3}[ \w]{0,40})"),
        "requests and urllib3, all versions: the proxy answered, not the Hub",
        "the proxy does not let the engine through to the Hub ({answer}): check HTTPS_PROXY and NO_PROXY (in `env`) "
        "and what the proxy allows, or download the model elsewhere and set HF_HUB_OFFLINE=1",
        start_only=True,
    ),
    Signature(
        "hf_offline",
        pattern(r"50[0234] Server Error|(?:Bad Gateway|Service Unavailable|Gateway Time-?out) for url"),
        "an outage of the Hub, which a cached model need not notice",
        "the Hub is down: try again later, or set HF_HUB_OFFLINE=1 (in `env`) where the model is cached",
        retry=Retry.TRANSIENT,
        start_only=True,
    ),
    Signature(
        "hf_offline",
        pattern(
            r"LocalEntryNotFoundError|OfflineModeIsEnabled|CacheNotFound|outgoing traffic has been disabled|"
            r"We couldn't connect to 'https?://|offline mode is enabled|"
            r"Cannot find an appropriate cached snapshot folder|IncompleteSnapshotError|"
            r"Cannot find the requested files in the (?:disk|local) cache"
        ),
        "all versions",
        start_only=True,
    ),
    Signature(
        "hf_offline",
        pattern(
            r"(?:Max retries exceeded with url|Failed to (?:resolve|establish a new connection)|"
            r"Temporary failure in name resolution|Name or service not known|Network is unreachable|"
            r"nodename nor servname|ConnectTimeout|Connection (?:refused|reset|timed out)).{0,300}"
            r"(?:huggingface|hf\.co|modelscope|HTTPS)|"
            r"HTTPSConnectionPool\(host='(?P<host>[^']+)'.{0,200}(?:Max retries|timed out)|"
            r"(?:ConnectError|ConnectionError|ReadTimeout|ConnectTimeout)\b.{0,200}"
            r"(?:huggingface|name resolution|service not known|unreachable)"
        ),
        "all versions",
        start_only=True,
    ),
    Signature(
        "model_not_found",
        pattern(r"Repo id must (?:be in the form|use alphanumeric).{0,80}?: '(?P<name>[^']+)'"),
        "0.6 to 0.33: a missing local path is reported as a bad repository id",
        "vLLM took {name} for a name on the Hub because no such directory exists for its user: check the path (in a "
        "container: the mount) with `ls {name}`",
        start_only=True,
    ),
    Signature(
        "model_not_found",
        pattern(r"(?<!\S)(?P<revision>[^\s:]{1,200}) is not a valid git identifier"),
        "transformers, all versions",
        "the model has no branch, tag or commit {revision}: correct --revision (and --code-revision, "
        "--tokenizer-revision); the model's page lists them",
        start_only=True,
    ),
    Signature(
        "weights_corrupt",
        pattern(r"No such file or directory: [\"'](?P<file>[^\"']*-\d{5}-of-\d{5}\.(?:safetensors|bin))"),
        "all versions: the index names a file that is not there",
        "{file} is missing from the checkpoint: download it again (`hf download ORG/NAME`), or copy it whole",
        start_only=True,
    ),
    Signature(
        "weights_corrupt",
        pattern(r"config file at ['\"]?(?P<file>[^'\"]{1,300}?)['\"]? is not a valid JSON"),
        "transformers, all versions",
        "{file} is no JSON (empty, cut, or a git-lfs pointer): download it again",
        start_only=True,
    ),
    Signature(
        "weights_corrupt",
        pattern(r"^(?:_pickle\.|pickle\.)?(?:EOFError: Ran out of input|UnpicklingError: )"),
        "torch.load of a .bin or .pt file that is empty or cut",
        start_only=True,
        within=pattern(r"torch/serialization\.py"),
    ),
    Signature(
        "model_not_found",
        pattern(
            r"Repo id must (?:be in the form|use alphanumeric)|HFValidationError|RepositoryNotFoundError|"
            r"RevisionNotFoundError|is not a local folder and is not a valid model identifier|404 Client Error|"
            r"Invalid repository ID or local directory specified|Incorrect path_or_model_id|"
            r"does not appear to have a file named|Cannot find any model weights with|"
            r"Entry Not Found for url|Can't load (?:the configuration|tokenizer) (?:of|for)|"
            r"No such file or directory: '(?![^']*-\d{5}-of-)[^']*"
            r"(?:config\.json|tokenizer|params\.json|\.safetensors|\.gguf)"
        ),
        "all versions",
        start_only=True,
    ),
    Signature(
        "weights_corrupt",
        pattern(
            r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|InvalidHeaderDeserialization|"
            r"PytorchStreamReader failed|failed finding central directory|HeaderTooLarge|invalid load key|"
            r"Consistency check failed|UnpicklingError|incomplete metadata, file not fully covered|"
            r"Following weights were not initialized from checkpoint|not a valid GGUF|"
            r"GGUF magic .{0,20}(?:invalid|mismatch)|corrupt(?:ed)? (?:file|weights)"
        ),
        "all versions",
        start_only=True,
    ),
    Signature(
        "permission_denied",
        pattern(r"(?:PermissionError|Errno 13\]).{0,40}Permission denied(?:: '(?P<path>[^']+)')?"),
        "all versions: caches, locks, devices",
        "the service's user may not use {path}: give it to that user, or point HF_HOME, VLLM_CACHE_ROOT and "
        "TRITON_CACHE_DIR (in `env`) at a directory that it owns",
        start_only=True,
        adjust=lambda found: {"path": found.get("path") or "a file that it needs"},
    ),
    Signature(
        "permission_denied",
        pattern(r"PermissionError at (?P<path>\S+) when downloading"),
        "vLLM's downloader: a lock or a file of another user",
        "the service's user may not write below {path}: give that directory, its .locks included, to that user, or "
        "point HF_HOME (in `env`) at one that it owns; a download of another user may still be running",
        start_only=True,
    ),
    Signature(
        "permission_denied",
        pattern(r"Permission denied|Errno 30\] Read-only file system|Operation not permitted: '"),
        "all versions",
        start_only=True,
        tier=Tier.VAGUE,
    ),
)
