"""What number formats need of a card."""

LEAST = {
    "awq": (7, 5),
    "auto_awq": (7, 5),
    "awq_marlin": (7, 5),
    "bitsandbytes": (7, 0),
    "compressed-tensors": (7, 0),
    "deepspeedfp": (6, 0),
    "experts_int8": (8, 0),
    "fbgemm_fp8": (8, 0),
    "fp8": (7, 5),
    "fp_quant": (10, 0),
    "gguf": (6, 0),
    "gpt_oss_mxfp4": (8, 0),
    "gptq": (6, 0),
    "auto_gptq": (6, 0),
    "gptq_marlin": (7, 5),
    "inc": (6, 0),
    "auto-round": (6, 0),
    "modelopt": (8, 0),
    "modelopt_fp4": (7, 5),
    "modelopt_mxfp8": (8, 0),
    "moe_wna16": (7, 0),
    "mxfp4": (8, 0),
    "quark": (7, 0),
    "torchao": (7, 5),
}
"""Quantization method -> least compute capability: `get_min_capability` of vLLM 0.32; earlier versions ask for more."""
