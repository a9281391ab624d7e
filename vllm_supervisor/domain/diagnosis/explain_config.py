"""Explanations: what was asked for, and versions that do not fit together."""

from vllm_supervisor.domain.diagnosis.explanation import Check, Explanation

_VERSIONS = Check("pip list | grep -iE '^(vllm|torch|transformers|tokenizers|numpy|flash)'", "the versions in use")
_MODEL_CONFIG = Check("cat MODEL_PATH/config.json", "architectures, max_position_embeddings, quantization_config")

CONFIG = (
    Explanation(
        "bad_cli_argument",
        "vLLM does not accept its command line",
        "An option is mistyped, was removed or came later than this version, or the words `vllm serve` are given "
        "twice. "
        "argparse ends with status 2.",
        (
            Check("vllm-supervisor check", "the command line as it is launched"),
            Check("vllm serve --help=all | grep -- --OPTION", "nothing: this version does not know it"),
        ),
        ("correct `engine.vllm.extra_args`; `vllm serve --help=all` lists the options of this version",),
    ),
    Explanation(
        "max_model_len_error",
        "--max-model-len is beyond what the model is made for",
        "The model's configuration limits its positions. Beyond them it answers nonsense, unless its card documents "
        "rope "
        "scaling. A client's request beyond the limit gets a 400 and harms nothing.",
        (_MODEL_CONFIG,),
        (
            "lower --max-model-len to the limit in the message",
            (
                "where the model's card documents it, set rope scaling with --hf-overrides; "
                "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only if you know that the model bears it"
            ),
        ),
    ),
    Explanation(
        "lora_rank_error",
        "a LoRA adapter has a higher rank than the engine was started for",
        "The rank is fixed at the start (16 by default), and memory is laid out for it.",
        (Check("grep '\"r\"' ADAPTER/adapter_config.json", "the adapter's rank"),),
        ("set --max-lora-rank to the highest rank among the adapters (8, 16, 32, 64, 128, 256, 320 or 512)",),
    ),
    Explanation(
        "tensor_parallel_divisibility",
        "the model cannot be split over that many GPUs",
        "Attention heads, the vocabulary and quantized blocks have to divide evenly.",
        (_MODEL_CONFIG,),
        (
            (
                "choose a --tensor-parallel-size that divides the attention heads, and use --pipeline-parallel-size "
                "for "
                "the rest of the GPUs"
            ),
        ),
    ),
    Explanation(
        "quantization_mismatch",
        "--quantization does not fit the checkpoint",
        "The checkpoint says itself how it is quantized; the option contradicts it, or names a method for a checkpoint "
        "that is not quantized.",
        (_MODEL_CONFIG,),
        ("drop --quantization: vLLM reads it from the checkpoint; or take a checkpoint in that format",),
    ),
    Explanation(
        "unsupported_architecture",
        "this vLLM does not know the model's architecture",
        "The model is newer than this vLLM, or of a kind it does not serve. If the name stands in the list that the "
        "message prints, an import failed instead: see import_error.",
        (_MODEL_CONFIG, _VERSIONS),
        (
            "upgrade vLLM, or choose a model with a supported architecture",
            "--model-impl transformers serves some others, slower",
        ),
    ),
    Explanation(
        "transformers_mismatch",
        "transformers is too old for the model, or too new for vLLM",
        "A new model wants a newer transformers; an old vLLM breaks with a newer one (5.x removed what 0.11 uses).",
        (_VERSIONS,),
        (
            (
                "install the transformers that this vLLM names (`pip check`): older vLLM wants transformers<5, a new "
                "model "
                "wants a newer vLLM with its own transformers"
            ),
        ),
    ),
    Explanation(
        "trust_remote_code",
        "the model brings its own code, and nobody allowed it",
        "Loading it means running Python from the model's repository. On a terminal transformers asks; a service has "
        "none.",
        (Check("ls MODEL_PATH/*.py; grep auto_map MODEL_PATH/config.json", "the code that would run"),),
        (
            (
                "read the code, then add --trust-remote-code to `extra_args`; pin --revision and --code-revision so "
                "that "
                "it stays what you read"
            ),
        ),
    ),
    Explanation(
        "import_error",
        "a Python package of the environment is broken or missing",
        "A compiled extension was built for another torch (`undefined symbol`), a package is missing, or two versions "
        "are mixed. vLLM checks architectures in a child process: a failed import there is reported as an architecture "
        "that it cannot inspect.",
        (
            Check("python -c 'import vllm._C, torch; print(torch.__version__)'", "the same error, without the rest"),
            _VERSIONS,
        ),
        (
            (
                "make a fresh environment and install vLLM alone into it; remove a flash-attn or xformers of your own "
                "that was built for another torch"
            ),
        ),
    ),
    Explanation(
        "torch_compile_failure",
        "torch.compile failed, or its cache is damaged",
        "Compiled graphs are kept between starts. One from another version, from a start that was killed, or from a "
        "volume that several hosts share breaks the next start.",
        (
            Check(
                "ls -la ~/.cache/vllm/torch_compile_cache", "entries older than the last upgrade, or from other hosts"
            ),
            Check("VLLM_DISABLE_COMPILE_CACHE=1 (in `env`), once", "a start that works: the cache is to blame"),
        ),
        (
            "move ~/.cache/vllm/torch_compile_cache (below VLLM_CACHE_ROOT) aside and start again",
            "if a fresh cache fails too: --enforce-eager, and report the traceback",
            "do not share the cache between hosts or versions",
        ),
    ),
)
