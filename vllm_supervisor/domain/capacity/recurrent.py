"""Recurrent mixers: their matrices, and the state that they keep of a request (vLLM 0.32's shapes)."""

from collections import Counter
from dataclasses import dataclass

from vllm_supervisor.domain.capacity.architecture import Part, State
from vllm_supervisor.domain.capacity.fields import Fields

_FLOAT32 = 4
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Mixer:
    """One layer's mixer. `divided` are the counts that tensor parallelism has to divide."""

    parameters: Counter[Part]
    state: State
    divided: tuple[tuple[str, int], ...] = ()


def mixer(fields: Fields, name: str, hidden: int) -> Mixer:
    """Return the recurrent mixer of a layer. Raises BadInputError where the configuration lacks something."""
    if name.startswith("qwen3"):
        return _gated_delta(fields, hidden)
    if name in ("jamba", "mamba", "falcon_mamba"):
        return _mamba1(fields, hidden)
    return _mamba2(fields, name, hidden)


def convolution(fields: Fields, hidden: int) -> Mixer:
    """Return LFM2's short convolution."""
    taps = fields.count("conv_L_cache", default=3)
    parameters = Counter({Part.MIXER: 4 * hidden * hidden, Part.NORM: hidden * taps})
    return Mixer(parameters, State(channels=hidden, taps=taps - 1, elements=0))


def _gated_delta(fields: Fields, hidden: int) -> Mixer:
    k_heads, v_heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    k_size, v_size = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    taps = fields.count("linear_conv_kernel_dim", default=4)
    keys, values = k_heads * k_size, v_heads * v_size
    channels = 2 * keys + values
    parameters = Counter(
        {
            Part.MIXER: hidden * (channels + values) + values * hidden,
            Part.NORM: hidden * 2 * v_heads + channels * taps + 2 * v_heads + v_size,
        }
    )
    state = State(channels, taps - 1, v_heads * v_size * k_size, element_bytes=_state_bytes(fields))
    return Mixer(parameters, state, (("linear_num_key_heads", k_heads), ("linear_num_value_heads", v_heads)))


def _mamba1(fields: Fields, hidden: int) -> Mixer:
    inner = fields.optional("intermediate_size") if fields.text("model_type") != "jamba" else None
    inner = inner or fields.count("mamba_expand", "expand", default=2) * hidden
    size = fields.count("mamba_d_state", "state_size", default=16)
    taps = fields.count("mamba_d_conv", "conv_kernel", default=4)
    rank = fields.optional("mamba_dt_rank") if isinstance(fields.values.get("mamba_dt_rank"), int) else None
    rank = rank or (fields.optional("time_step_rank") if isinstance(fields.values.get("time_step_rank"), int) else None)
    rank = rank or -(-hidden // 16)
    parameters = Counter(
        {
            Part.MIXER: hidden * 2 * inner + inner * (rank + 2 * size) + rank * inner + inner * hidden,
            Part.NORM: inner * taps + 2 * inner + inner * size + inner + rank + 2 * size,
        }
    )
    return Mixer(parameters, State(inner, taps - 1, inner * size), (("the mixer's channels", inner),))


def _mamba2(fields: Fields, name: str, hidden: int) -> Mixer:
    heads = fields.count("mamba_num_heads", "mamba_n_heads", "num_heads")
    width = fields.optional("mamba_d_head") if isinstance(fields.values.get("mamba_d_head"), int) else None
    width = width or fields.optional("mamba_head_dim", "head_dim") or 0
    inner = fields.optional("mamba_d_ssm") or 0
    if name == "nemotron_h":
        inner = heads * width
    inner = inner or fields.count("mamba_expand", "expand", default=2) * hidden
    width = inner // heads if name != "nemotron_h" or not width else width
    size = fields.count("mamba_d_state", "ssm_state_size", "state_size")
    groups = fields.count("mamba_n_groups", "n_groups", default=1)
    taps = fields.count("mamba_d_conv", "conv_kernel", default=4)
    channels = inner + 2 * groups * size
    parameters = Counter(
        {
            Part.MIXER: hidden * (inner + channels + heads) + inner * hidden,
            Part.NORM: channels * (taps + 1) + 3 * heads + inner,
        }
    )
    state = State(channels, taps - 1, heads * width * size, groups, size, element_bytes=_state_bytes(fields, name))
    return Mixer(parameters, state, (("the mixer's heads", heads),))


def _state_bytes(fields: Fields, name: str = "") -> int | None:
    """Return the type of the state: as the configuration says, else float32 for Nemotron-H, else the model's."""
    given = _BYTES.get(fields.text("mamba_ssm_cache_dtype") or fields.text("mamba_ssm_dtype"))
    return given or (_FLOAT32 if name == "nemotron_h" else None)
