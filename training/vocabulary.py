"""Token names and ids of the tiny models: those of Qwen3.5, on a vocabulary of 4096 rows."""

BPE_TOKENS = 4064  # learned tokens and the 256 bytes; the named tokens follow
TOKENS = 4080  # with the named ones
VOCABULARY = 4096  # rows of the embedding; those from 4080 on are padding
END_OF_TEXT = 4064
END_OF_TURN = 4066
# A padding row, as in the drafters published in June 2026.
MASK = 4090

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
PLAIN_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

# Qwen3.5's split pattern (`tokenizer.ggml.pre = qwen35`).
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
