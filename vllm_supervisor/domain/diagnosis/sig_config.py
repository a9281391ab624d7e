"""What was asked for: arguments, the model's own configuration, versions that do not fit together."""

import re

from vllm_supervisor.domain.diagnosis.signature import Signature, Tier, pattern
from vllm_supervisor.domain.retry import Retry


def _divisors(found: dict[str, str]) -> dict[str, str]:
    """Name the tensor-parallel sizes that divide the heads."""
    heads = int(found["heads"])
    sizes = [size for size in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16) if heads % size == 0]
    return {"sizes": ", ".join(str(size) for size in sizes)}


_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What --max-lora-rank takes."""


def _rank_that_fits(found: dict[str, str]) -> dict[str, str]:
    """Name the smallest accepted rank that holds the adapter's."""
    rank = int(found["rank"])
    fit = next((accepted for accepted in _RANKS if accepted >= rank), None)
    if fit is None:
        return {
            "fit": f"rank {rank} is more than vLLM takes ({_RANKS[-1]}): train or convert the adapter to a lower one"
        }
    return {"fit": f"set --max-lora-rank {fit}"}


def _whose_extension(found: dict[str, str]) -> dict[str, str]:
    """Tell vLLM's own extensions from those of packages that it can do without."""
    file = found["file"]
    if re.search(r"(?:^|/)vllm/", file):
        return {
            "whose": "vLLM's own",
            "mend": "put a vLLM and the torch that it names into a fresh environment "
            "(`vllm-supervisor install-vllm`), and let nothing replace that torch",
        }
    return {
        "whose": "this extension",
        "mend": "reinstall its package for this torch, or remove it where vLLM can do without (flash-attn, xformers)",
    }


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
        before_banner=True,
    ),
    Signature(
        "bad_cli_argument",
        pattern(
            r"^(?:KeyError|ValueError|TypeError): [\"']?[Ii]nvalid (?P<kind>(?:tool call|reasoning|tool) parser): "
            r"(?P<name>[^\s'\"]+)(?:.{0,40}chose from \{ ?(?P<known>[^}]{1,600}))?"
        ),
        "0.6 to 0.33: plugins' names are looked up after argparse",
        "this vLLM has no {kind} {name}{known}; correct the option, or load its plugin",
        start_only=True,
        adjust=lambda found: {"known": f": it has {known.strip()}" if (known := found.get("known")) else ""},
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
            r"\((?:[^)=]*?=)?\s*(?P<limit>\d{1,9}(?:\.\d+)?)"
        ),
        "0.3 to 0.33",
        "set --max-model-len {limit} or less: the model is made for {limit} positions and {asked} were asked for; "
        "rope scaling (--hf-overrides) only where the model's card documents it",
        adjust=lambda found: {"limit": str(int(float(found["limit"])))},
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
        pattern(r"LoRA rank (?P<rank>\d{1,9}) is greater than max_lora_rank (?P<max>\d+)"),
        "0.2 to 0.33, also wrapped by the executor",
        "{fit} (it is {max})",
        start_only=True,
        adjust=_rank_that_fits,
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
            r"(?<!\d)\d{1,9} is not divisible by \d|is not divisible by (?:weight quantization block|tensor parallel)|"
            r"not divisible by weight quantization block|input size is not aligned with the quantized weight shape|"
            r"vocab(?:ulary)? size.{0,40}divisible|"
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
        pattern(r"(?<![^\s:'\"])(?P<file>[^\s:'\"]{1,400}\.so[.\d]{0,20}): undefined symbol"),
        "0.2 to 0.33: compiled against another torch",
        "{whose} {file} was built for another torch than the one that is installed: {mend}",
        start_only=True,
        adjust=_whose_extension,
    ),
    Signature(
        "import_error",
        pattern(
            r"undefined symbol|^(?:\w+\.)*(?:ImportError|ModuleNotFoundError): |partially initialized module|"
            r"'_OpNamespace' '_C\w*' object has no attribute|"
            r"GLIBC(?:XX)?_[\d.]+' not found|DLL load failed|numpy\.dtype size changed|"
            r"A module that was compiled using NumPy 1\.x cannot be run|module 'numpy' has no attribute|"
            r"numpy\.core\.multiarray failed to import|_ARRAY_API not found|operator \S+ does not exist"
        ),
        "0.2 to 0.33",
        start_only=True,
    ),
    Signature(
        "torch_compile_failure",
        pattern(r"Failed to find C compiler|No such file or directory: '(?:gcc|cc|g\+\+|clang\+*)'"),
        "Triton, all versions: it builds its launchers on the host",
        "Triton needs a C compiler on this host: install gcc (Debian: build-essential) or name one with CC in `env`; "
        "--enforce-eager does not always avoid it",
        retry=Retry.PERMANENT,
        start_only=True,
    ),
    Signature(
        "torch_compile_failure",
        pattern(r"fatal error: Python\.h: No such file"),
        "Triton's launchers are C code against Python's headers",
        "install Python's headers for the interpreter that runs vLLM (Debian: python3-dev, python3.12-dev)",
        retry=Retry.PERMANENT,
        start_only=True,
    ),
    Signature(
        "torch_compile_failure",
        pattern(r"pickle data was truncated|UnpicklingError|EOFError: Ran out of input|invalid load key"),
        "a cache that a killed start left half written",
        start_only=True,
        within=pattern(r"torch/_inductor/|torch/_dynamo/|torch/_functorch/|vllm/compilation/|torch_compile_cache"),
    ),
    Signature(
        "torch_compile_failure",
        pattern(
            r"vLLM failed to compile the model|failed to get the hash of the compiled graph|"
            r"Bytes object is corrupted, checksum does not match|"
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
