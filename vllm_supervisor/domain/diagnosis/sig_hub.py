"""Where the model comes from: the Hub, the cache, files on disk."""

from vllm_supervisor.domain.diagnosis.classes import Retry
from vllm_supervisor.domain.diagnosis.signature import Signature, Tier, pattern

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
            r"40[13] Client Error|Invalid (?:username or password|user token)|401 Unauthorized|403 Forbidden|"
            r"LocalTokenNotFoundError|Token is required|Invalid credentials in Authorization header"
        ),
        "huggingface_hub; a name that does not exist answers 401 too, to whoever shows no token",
        "set HF_TOKEN (in `env`, or as a credential) to a token whose account may read the model, and check the name: "
        "without a token the Hub answers 401 for a name that does not exist as well",
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
        pattern(
            r"Repo id must (?:be in the form|use alphanumeric)|HFValidationError|RepositoryNotFoundError|"
            r"RevisionNotFoundError|is not a local folder and is not a valid model identifier|404 Client Error|"
            r"Invalid repository ID or local directory specified|Incorrect path_or_model_id|"
            r"does not appear to have a file named|Cannot find any model weights with|"
            r"Entry Not Found for url|Can't load (?:the configuration|tokenizer) (?:of|for)|"
            r"No such file or directory: '[^']*(?:config\.json|tokenizer|params\.json|\.safetensors|\.gguf)"
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
            r"Following weights were not initialized from checkpoint|not a valid GGUF|corrupt(?:ed)? (?:file|weights)"
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
        pattern(r"Permission denied|Errno 30\] Read-only file system|Operation not permitted: '"),
        "all versions",
        start_only=True,
        tier=Tier.VAGUE,
    ),
)
