"""What was asked for: arguments, the model's own configuration, versions that do not fit together."""

from vllm_supervisor.domain.diagnosis.signature import Signature, Tier, pattern


def _divisors(found: dict[str, str]) -> dict[str, str]:
    """Name the tensor-parallel sizes that divide the heads."""
    heads = int(found["heads"])
    sizes = [size for size in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16) if heads % size == 0]
    return {"sizes": ", ".join(str(size) for size in sizes)}


CONFIG = (
    Signature(
        "bad_cli_argument",
        pattern(
            r"(?:^|\s)[\w./-]*(?:vllm|\.py|serve|launch|python3?)[\w./ -]*: error: "
            r"(?P<what>(?:unrecognized arguments|argument |the following arguments|ambiguous option|"
            r"expected one argument|not allowed|invalid ).*)"
        ),
        "all versions: argparse, exit 2",
        "fix `extra_args` ({what}); `vllm serve --help=all` lists what this version takes. In a container whose "
        "entrypoint is `vllm serve`, do not repeat the words",
    ),
    Signature(
        "bad_cli_argument",
        pattern(
            r"^ValueError: (?:Unknown|Invalid|Unsupported) (?:option|argument|load_format|flag)|"
            r"^ValueError: (?:Both|Only one of) --|^TypeError: .{0,80}got an unexpected keyword argument '\w+'$"
        ),
        "options that pass argparse and fail later",
        tier=Tier.VAGUE,
        start_only=True,
    ),
    Signature(
        "max_model_len_error",
        pattern(
            r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
            r"\((?:[^)=]*?=)?\s*(?P<limit>[\d.]+)"
        ),
        "0.3 to 0.33",
        "set --max-model-len {limit} or less: the model is made for {limit} positions and {asked} were asked for; "
        "rope scaling (--hf-overrides) only where the model's card documents it",
    ),
    Signature(
        "max_model_len_error",
        pattern(
            r"User-specified max_model_len|is greater than the derived max_model_len|"
            r"max_model_len.{0,60}(?:exceeds|greater than|larger than).{0,60}(?:max_position_embeddings|derived)"
        ),
        "0.3 to 0.33",
    ),
    Signature(
        "max_model_len_error",
        pattern(r"max_num_batched_tokens \((?P<batched>\d+)\) is smaller than max_model_len \((?P<len>\d+)\)"),
        "0.2 to 0.33, without chunked prefill",
        "raise --max-num-batched-tokens to {len}, or lower --max-model-len to {batched}",
    ),
    Signature(
        "lora_rank_error",
        pattern(r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank (?P<max>\d+)"),
        "0.2 to 0.33, also wrapped by the executor",
        "set --max-lora-rank {rank} (it is {max})",
        start_only=True,
    ),
    Signature(
        "lora_rank_error",
        pattern(r"max_lora_rank \(\d+\) must be one of|LoRA rank.{0,60}(?:exceeds|larger|greater)"),
        "0.2 to 0.33",
        start_only=True,
    ),
    Signature(
        "tensor_parallel_divisibility",
        pattern(
            r"Total number of attention heads \((?P<heads>\d{1,9})\) must be divisible by tensor parallel size "
            r"\((?P<tp>\d+)\)"
        ),
        "0.1 to 0.33",
        "{heads} heads cannot be split over {tp} GPUs: set --tensor-parallel-size to one of {sizes}, or use "
        "--pipeline-parallel-size",
        adjust=_divisors,
    ),
    Signature(
        "tensor_parallel_divisibility",
        pattern(
            r"must be divisible by (?:the )?(?:tensor[ _]parallel|tp_size|TP size|tensor_model_parallel)|"
            r"\d+ is not divisible by \d+|is not divisible by (?:weight quantization block|tensor parallel)|"
            r"not divisible by weight quantization block|vocab(?:ulary)? size.{0,40}divisible|"
            r"(?:input_size_per_partition|output_size_per_partition|output_size).{0,80}not divisible"
        ),
        "0.1 to 0.33",
    ),
    Signature(
        "quantization_mismatch",
        pattern(
            r"Quantization method specified in the model config \((?P<model>[^)]+)\) does not match the quantization "
            r"method specified in the `quantization` argument \((?P<arg>[^)]+)\)"
        ),
        "0.2 to 0.33",
        "the checkpoint is {model} and --quantization says {arg}: drop --quantization, vLLM reads it from the model",
    ),
    Signature(
        "quantization_mismatch",
        pattern(r"Cannot find the config file for (?P<method>\w+)"),
        "0.1 to 0.33",
        "the checkpoint is not {method}-quantized: drop --quantization, or take a checkpoint that is",
    ),
    Signature(
        "quantization_mismatch",
        pattern(
            r"Unknown quantization method|is not supported for quantization method|"
            r"Quantization method .{0,60}(?:does not match|not supported|is unsupported)|"
            r"quantization (?:method|config).{0,40}(?:mismatch|not recognized)|"
            r"KV cache scaling factor|unsupported quantization scheme|No compressed-tensors compatible scheme|"
            r"Failed to get quantization config"
        ),
        "0.2 to 0.33",
    ),
    Signature(
        "import_error",
        pattern(
            r"Error in inspecting model architecture|Model architectures \[.*?\] failed to be inspected|"
            r"Model architectures \['(?P<arch>\w+)'\] are not supported for now.{0,40}: .*'(?P=arch)'"
        ),
        "0.6 to 0.33: the check runs in a child whose imports fail; the first traceback says which",
    ),
    Signature(
        "unsupported_architecture",
        pattern(
            r"Model architectures \['(?P<arch>\w+)'.*\] are not supported for now|"
            r"Cannot find model module\. '(?P<arch2>\w+)' is not a registered model"
        ),
        "0.2 to 0.33",
        "this vLLM has no {name}: upgrade vLLM, or serve a model of an architecture from the list of supported models",
        adjust=lambda found: {"name": found.get("arch") or found.get("arch2") or "such architecture"},
    ),
    Signature(
        "unsupported_architecture",
        pattern(
            r"are not supported for now|has no vLLM implementation|No model architectures are specified|"
            r"(?:model|Model) (?:does|class does) not support (?:--task|--runner|the ['`]?(?:generate|embed|pool))"
        ),
        "0.2 to 0.33",
    ),
    Signature(
        "transformers_mismatch",
        pattern(r"Transformers does not recognize this architecture|does not recognize this architecture"),
        "0.6 to 0.33",
    ),
    Signature(
        "transformers_mismatch",
        pattern(
            r"AttributeError: \w*(?:Tokenizer|Config|Processor)\w* has no attribute|"
            r"AttributeError: '?\w*(?:Tokenizer|Config|Processor)\w*'? object has no attribute|"
            r"cannot import name '\w+' from 'transformers|No module named 'transformers\.|"
            r"Tokenizer class \w+ does not exist|requires transformers|Please (?:upgrade|update|"
            r"install).{0,30}transformers|"
            r"Unrecognized configuration class|should have a `model_type` key|"
            r"data did not match any variant of untagged enum|"
            r"KeyError: '(?:qwen|llama|mistral|gemma|phi|glm|deepseek|minicpm|internlm|granite|exaone|olmo)\w*'|"
            r"`rope_scaling` must be a dictionary|rope_scaling.{0,40}(?:must|should) have"
        ),
        "0.6 to 0.33: transformers too old for the model, or too new for vLLM",
    ),
    Signature(
        "trust_remote_code",
        pattern(
            r"trust_remote_code=True|contains custom code which must be executed|"
            r"requires you to execute the (?:configuration|tokenizer|model|modeling) file|"
            r"execute the code in that repo|--trust-remote-code.{0,60}(?:flag|option|required|set)"
        ),
        "all versions; transformers asks y/N where it has a terminal",
        start_only=True,
    ),
    Signature(
        "import_error",
        pattern(
            r"undefined symbol|^(?:\w+\.)*(?:ImportError|ModuleNotFoundError): |partially initialized module|"
            r"'_OpNamespace' '_C\w*' object has no attribute|"
            r"GLIBC(?:XX)?_[\d.]+' not found|DLL load failed|numpy\.dtype size changed|"
            r"A module that was compiled using NumPy 1\.x cannot be run|operator \S+ does not exist"
        ),
        "0.2 to 0.33",
        start_only=True,
    ),
    Signature(
        "torch_compile_failure",
        pattern(
            r"vLLM failed to compile the model|failed to get the hash of the compiled graph|"
            r"Expected tensors only, but got|BackendCompilerFailed|InductorError|LoweringException|"
            r"torch\._dynamo\.exc\.\w+|torch\._inductor\.exc\.\w+|CppCompileError|"
            r"Failed to load (?:AOT )?compil|compiled artifact.{0,40}(?:corrupt|mismatch)|PTXASError|"
            r"triton\.compiler\.errors\.CompilationError|failed to run ptxas"
        ),
        "0.8 to 0.33",
    ),
    Signature(
        "torch_compile_failure",
        pattern(r"too many values to unpack \(expected \d+\)|not enough values to unpack \(expected \d+, got \d+\)"),
        "0.8: a compiled graph of another version out of the cache",
        tier=Tier.VAGUE,
        start_only=True,
    ),
)
