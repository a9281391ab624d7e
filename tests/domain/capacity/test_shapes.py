"""What is read from a configuration beside its total: all that later arithmetic divides by, or is shown to a user."""

import pytest

from tests.domain.capacity.counted import COUNTED, Counted
from tests.domain.capacity.models import PUBLISHED, Config
from vllm_supervisor.domain.capacity.architecture import Architecture
from vllm_supervisor.domain.capacity.reading import read

CONFIGS: dict[str, Config] = {
    **{name: known.config for name, known in PUBLISHED.items()},
    **{name: known.config for name, known in COUNTED.items()},
}


def told(found: Architecture) -> str:
    """Tell an architecture in a line."""
    experts = f", experts {found.active_experts} of {found.experts} with {found.expert_inner}" if found.experts else ""
    return (
        f"{found.name} ({found.family}): {found.layers} layers of {found.hidden}, MLP {found.inner}, "
        f"widest {found.widest}, heads {found.heads} and {found.kv_heads}{experts}, {found.vocabulary} words, "
        f"length {found.max_len}, {found.dtype_bytes} bytes"
        + "".join(f", {name} {count}" for name, count in found.divided)
        + "".join(f", beside {part}" for part in found.beside)
        + "".join(f", uncounted {part}" for part in found.uncounted)
        + (", tied" if found.tied else "")
        + (", pooling" if found.pooling else "")
    )


TOLD = {
    "Llama-3-8B": (
        "LlamaForCausalLM (llama): 32 layers of 4096, MLP 14336, widest 14336, "
        "heads 32 and 8, 128256 words, length 8192, 2 bytes"
    ),
    "Llama-3-70B": (
        "LlamaForCausalLM (llama): 80 layers of 8192, MLP 28672, widest 28672, "
        "heads 64 and 8, 128256 words, length 8192, 2 bytes"
    ),
    "Llama-2-7B": (
        "LlamaForCausalLM (llama): 32 layers of 4096, MLP 11008, widest 11008, "
        "heads 32 and 32, 32000 words, length 4096, 2 bytes"
    ),
    "Qwen2.5-7B": (
        "Qwen2ForCausalLM (qwen2): 28 layers of 3584, MLP 18944, widest 18944, "
        "heads 28 and 4, 152064 words, length 32768, 2 bytes"
    ),
    "Qwen2.5-VL-7B": (
        "Qwen2_5_VLForConditionalGeneration (qwen2_5_vl_text): 28 layers of 3584, MLP 18944, widest 18944, "
        "heads 28 and 4, 152064 words, length 128000, 2 bytes, beside vision"
    ),
    "Qwen3-0.6B": (
        "Qwen3ForCausalLM (qwen3): 28 layers of 1024, MLP 3072, widest 3072, "
        "heads 16 and 8, 151936 words, length 40960, 2 bytes, tied"
    ),
    "Qwen3-32B": (
        "Qwen3ForCausalLM (qwen3): 64 layers of 5120, MLP 25600, widest 25600, "
        "heads 64 and 8, 151936 words, length 40960, 2 bytes"
    ),
    "Qwen3-30B-A3B": (
        "Qwen3MoeForCausalLM (qwen3_moe): 48 layers of 2048, MLP 0, widest 6144, "
        "heads 32 and 4, experts 8 of 128 with 768, 151936 words, length 40960, 2 bytes"
    ),
    "DeepSeek-V3": (
        "DeepseekV3ForCausalLM (deepseek_v3): 61 layers of 7168, MLP 18432, widest 18432, "
        "heads 128 and 1, experts 8 of 256 with 2048, 129280 words, length 163840, 2 bytes"
    ),
    "Gemma-3-27B": (
        "Gemma3ForConditionalGeneration (gemma3_text): 62 layers of 5376, MLP 21504, widest 21504, "
        "heads 32 and 16, 262208 words, length 131072, 2 bytes, beside vision, tied"
    ),
    "Gemma-3-4B": (
        "Gemma3ForConditionalGeneration (gemma3_text): 34 layers of 2560, MLP 10240, widest 10240, "
        "heads 8 and 4, 262208 words, length 131072, 2 bytes, beside vision, tied"
    ),
    "LLaVA-1.5-7B": (
        "LlavaForConditionalGeneration (llama): 32 layers of 4096, MLP 11008, widest 11008, "
        "heads 32 and 32, 32064 words, length 4096, 2 bytes, beside vision"
    ),
    "Pixtral-12B": (
        "LlavaForConditionalGeneration (mistral): 40 layers of 5120, MLP 14336, widest 14336, "
        "heads 32 and 8, 131072 words, length 1024000, 2 bytes, beside vision"
    ),
    "gpt-oss-20b": (
        "GptOssForCausalLM (gpt_oss): 24 layers of 2880, MLP 0, widest 11520, "
        "heads 64 and 8, experts 4 of 32 with 2880, 201088 words, length 131072, 2 bytes"
    ),
    "Mixtral-8x7B": (
        "MixtralForCausalLM (mixtral): 32 layers of 4096, MLP 0, widest 28672, "
        "heads 32 and 8, experts 2 of 8 with 14336, 32000 words, length 32768, 2 bytes"
    ),
    "Qwen3-Next-80B-A3B without its draft layer": (
        "Qwen3NextForCausalLM (qwen3_next): 48 layers of 2048, MLP 512, widest 5632, "
        "heads 16 and 2, experts 10 of 512 with 512, 151936 words, length 262144, 2 bytes, "
        "linear_num_key_heads 16, linear_num_value_heads 32"
    ),
    "Jamba-v0.1": (
        "JambaForCausalLM (jamba): 32 layers of 4096, MLP 14336, widest 28672, "
        "heads 32 and 8, experts 2 of 16 with 14336, 65536 words, length 262144, 2 bytes, the mixer's channels 8192"
    ),
    "Granite-4.0-H-Small": (
        "GraniteMoeHybridForCausalLM (granitemoehybrid): 40 layers of 4096, MLP 1536, widest 9216, "
        "heads 32 and 8, experts 10 of 72 with 768, 100352 words, length 131072, 2 bytes, the mixer's heads 128, tied"
    ),
    "Nemotron-H-8B": (
        "NemotronHForCausalLM (nemotron_h): 52 layers of 4096, MLP 21504, widest 21504, "
        "heads 32 and 8, 131072 words, length 8192, 2 bytes, the mixer's heads 128"
    ),
    "BERT base": (
        "BertModel (bert): 12 layers of 768, MLP 0, widest 3072, "
        "heads 12 and 0, 30522 words, length 512, 4 bytes, tied, pooling"
    ),
    "gpt2": (
        "GPT2LMHeadModel (gpt2): 12 layers of 768, MLP 0, widest 3072, "
        "heads 12 and 12, 50257 words, length 1024, 2 bytes, tied"
    ),
    "opt-125m": (
        "OPTForCausalLM (opt): 12 layers of 768, MLP 0, widest 3072, "
        "heads 12 and 12, 50272 words, length 2048, 2 bytes, tied"
    ),
    "pythia-160m": (
        "GPTNeoXForCausalLM (gpt_neox): 12 layers of 768, MLP 3072, widest 3072, "
        "heads 12 and 12, 50304 words, length 2048, 2 bytes"
    ),
    "distilbert": (
        "DistilBertModel (distilbert): 6 layers of 768, MLP 0, widest 3072, "
        "heads 12 and 0, 30522 words, length 512, 2 bytes, tied, pooling"
    ),
    "gemma-2b": (
        "GemmaForCausalLM (gemma): 18 layers of 2048, MLP 16384, widest 16384, "
        "heads 8 and 1, 256000 words, length 8192, 2 bytes, tied"
    ),
    "gemma-2-2b": (
        "Gemma2ForCausalLM (gemma2): 26 layers of 2304, MLP 9216, widest 9216, "
        "heads 8 and 4, 256000 words, length 8192, 2 bytes, tied"
    ),
    "phi-3-mini": (
        "Phi3ForCausalLM (phi3): 32 layers of 3072, MLP 8192, widest 8192, "
        "heads 32 and 32, 32064 words, length 4096, 2 bytes"
    ),
    "Qwen2-0.5B": (
        "Qwen2ForCausalLM (qwen2): 24 layers of 896, MLP 4864, widest 4864, "
        "heads 14 and 2, 151936 words, length 131072, 2 bytes, tied"
    ),
    "bloom-560m": (
        "BloomForCausalLM (bloom): 24 layers of 1024, MLP 0, widest 4096, "
        "heads 16 and 16, 250880 words, length None, 2 bytes, tied"
    ),
    "falcon-7b": (
        "FalconForCausalLM (falcon): 32 layers of 4544, MLP 0, widest 18176, "
        "heads 71 and 1, 65024 words, length None, 2 bytes, tied"
    ),
    "phi-2": (
        "PhiForCausalLM (phi): 32 layers of 2560, MLP 10240, widest 10240, "
        "heads 32 and 32, 51200 words, length 2048, 2 bytes"
    ),
    "starcoder2-3b": (
        "Starcoder2ForCausalLM (starcoder2): 30 layers of 3072, MLP 12288, widest 12288, "
        "heads 24 and 2, 49152 words, length 16384, 2 bytes, tied"
    ),
    "mamba-130m": (
        "MambaForCausalLM (mamba): 24 layers of 768, MLP 1536, widest 1536, "
        "heads 0 and 0, 50280 words, length None, 2 bytes, the mixer's channels 1536, tied"
    ),
    "Qwen1.5-MoE": (
        "Qwen2MoeForCausalLM (qwen2_moe): 24 layers of 2048, MLP 5632, widest 11264, "
        "heads 16 and 16, experts 4 of 60 with 1408, 151936 words, length 8192, 2 bytes"
    ),
    "stablelm-3b-4e1t": (
        "StableLmForCausalLM (stablelm): 32 layers of 2560, MLP 6912, widest 6912, "
        "heads 32 and 32, 50304 words, length 4096, 2 bytes"
    ),
    "lfm2-1.2b": (
        "Lfm2ForCausalLM (lfm2): 16 layers of 2048, MLP 8192, widest 8192, "
        "heads 32 and 8, 65536 words, length 128000, 2 bytes, tied"
    ),
    "deepseek-v2-lite": (
        "DeepseekV2ForCausalLM (deepseek_v2): 27 layers of 2048, MLP 10944, widest 11264, "
        "heads 16 and 1, experts 6 of 64 with 1408, 102400 words, length 163840, 2 bytes"
    ),
    "roberta-base": (
        "RobertaModel (roberta): 12 layers of 768, MLP 0, widest 3072, "
        "heads 12 and 0, 50265 words, length 514, 2 bytes, tied, pooling"
    ),
    "modernbert-base": (
        "ModernBertModel (modernbert): 22 layers of 768, MLP 0, widest 1152, "
        "heads 12 and 0, 50368 words, length 8192, 2 bytes, tied, pooling"
    ),
    "olmoe": (
        "OlmoeForCausalLM (olmoe): 16 layers of 2048, MLP 0, widest 8192, "
        "heads 16 and 16, experts 8 of 64 with 1024, 50304 words, length 4096, 2 bytes"
    ),
    "olmo2-7b": (
        "Olmo2ForCausalLM (olmo2): 32 layers of 4096, MLP 11008, widest 11008, "
        "heads 32 and 32, 100352 words, length 4096, 2 bytes"
    ),
    "falcon-mamba-7b": (
        "FalconMambaForCausalLM (falcon_mamba): 64 layers of 4096, MLP 8192, widest 8192, "
        "heads 0 and 0, 65024 words, length None, 2 bytes, the mixer's channels 8192"
    ),
    "mistral-7b": (
        "MistralForCausalLM (mistral): 32 layers of 4096, MLP 14336, widest 14336, "
        "heads 32 and 8, 32000 words, length 32768, 2 bytes"
    ),
    "gptj": (
        "GPTJForCausalLM (gptj): 28 layers of 4096, MLP 0, widest 16384, "
        "heads 16 and 16, 50400 words, length 2048, 2 bytes"
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_shape_is_read(name: str) -> None:
    """Of dense models, with experts, with states, with images, of encoders; by whatever names their fields have."""
    assert told(read(CONFIGS[name])) == TOLD[name]


@pytest.mark.parametrize("known", COUNTED.values(), ids=COUNTED)
def test_parameters_are_counted_to_the_last(known: Counted) -> None:
    """Each family's own biases, positions, norms and heads; LFM2's MLPs are narrower than what is written."""
    assert abs(known.off) < known.parameters / 200
    assert read(known.config).total == known.parameters + known.off


def test_lfm2_is_as_wide_as_it_says_where_nothing_is_adjusted() -> None:
    """And without its own names, by the common one; a factor that makes no sense is none."""
    lfm2 = COUNTED["lfm2-1.2b"].config
    assert read({**lfm2, "block_auto_adjust_ff_dim": False}).inner == 12288
    assert read({**lfm2, "block_ff_dim": None, "intermediate_size": 1000}).inner == 768
    assert read({**lfm2, "block_ff_dim": 1156, "block_multiple_of": 10, "block_ffn_dim_multiplier": 1.5}).inner == 1160
    assert read({**lfm2, "block_ff_dim": 1155, "block_ffn_dim_multiplier": float("nan")}).inner == 1024
