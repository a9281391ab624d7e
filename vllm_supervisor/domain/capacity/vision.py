"""What a multimodal model has beside its text part: counted where the configuration tells all of it, else named."""

from vllm_supervisor.domain.capacity.fields import Fields

_SECTIONS = {
    "vision_config": "vision",
    "audio_config": "audio",
    "audio_encoder_config": "audio",
    "speech_config": "speech",
    "talker_config": "talker",
    "code2wav_config": "code2wav",
}


def beside(fields: Fields) -> tuple[str, ...]:
    """Return the names of the parts that are not text."""
    return tuple(dict.fromkeys(name for key, name in _SECTIONS.items() if fields.part(key).values))


def encoder(fields: Fields, model_type: str, hidden: int) -> int | None:
    """Return the parameters of the vision encoder and what joins it to the text; None where that is not known."""
    vision = fields.part("vision_config")
    if not vision.values:
        return 0
    if model_type in ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"):
        return _qwen(vision, model_type, hidden)
    if vision.text("model_type") in ("siglip_vision_model", "clip_vision_model", "pixtral"):
        return _tower(vision) + _joint(vision, model_type, hidden)
    return None


def _tower(vision: Fields) -> int:
    """Count a ViT as SigLIP and CLIP have it: biases everywhere, two norms with biases; Pixtral has neither."""
    pixtral = vision.text("model_type") == "pixtral"
    layers = vision.count("num_hidden_layers", default=24 if pixtral else 12)
    width, inner = _width(vision), vision.count("intermediate_size", default=4096 if pixtral else 3072)
    patch, image = vision.count("patch_size", default=16), vision.count("image_size", default=224)
    if pixtral:
        return layers * (4 * width * width + 3 * width * inner + 2 * width) + 3 * patch * patch * width + width
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    return layers * layer + 3 * patch * patch * width + width + (image // patch) ** 2 * width + 2 * width


def _width(vision: Fields) -> int:
    return vision.count("hidden_size", default=1024 if vision.text("model_type") == "pixtral" else 768)


def _joint(vision: Fields, model_type: str, hidden: int) -> int:
    """Count the projector: Gemma 3 has one matrix and a norm, LLaVA and Mistral 3 two matrices (and a merger)."""
    width = _width(vision)
    if model_type == "gemma3":
        return width * hidden + width
    merged = 4 * width * width + width if model_type == "mistral3" else 0
    return merged + width * hidden + hidden * hidden + 2 * hidden


def _qwen(vision: Fields, model_type: str, hidden: int) -> int:
    depth = vision.count("depth", default=32)
    width = vision.count("embed_dim" if model_type == "qwen2_vl" else "hidden_size", default=1280)
    inner = vision.optional("intermediate_size") or 4 * width
    patch, frames = vision.count("patch_size", default=14), vision.count("temporal_patch_size", default=2)
    gated = model_type == "qwen2_5_vl"
    mlp = (3 * width * inner + 2 * inner + width) if gated else (2 * width * inner + inner + width)
    norms = 2 * width if gated else 4 * width
    blocks = depth * (4 * width * width + 4 * width + mlp + norms)
    merged = width * vision.count("spatial_merge_size", default=2) ** 2
    merger = merged * merged + merged * hidden + merged + hidden + 2 * width
    deep = len(vision.items("deepstack_visual_indexes")) * (merger + 2 * merged)
    positions = (vision.optional("num_position_embeddings") or 0) * width
    return blocks + merger + deep + positions + 3 * patch * patch * frames * width
