"""A small model for tests: a folder in Hugging Face's format with random weights from a seed, a byte-level tokenizer and a
chat template. Needs only Python's standard library."""
import json
import os
import random
import struct

TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_symbols():
    """The character that GPT-2's tokenizer uses for each byte."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    letters, more = {b: chr(b) for b in plain}, 0
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + more)
            more += 1
    return [letters[b] for b in range(256)]


def write(folder, seed=1, context=512, width=64, layers=3, heads=4, kv_heads=2):
    draw = random.Random(seed)
    os.makedirs(folder, exist_ok=True)
    letters = byte_symbols()
    merges = [["t", "h"], ["th", "e"], ["i", "n"], ["e", "r"], ["\u0120", "the"], ["\u0120", "a"]]
    vocabulary = SPECIAL + letters + [a + b for a, b in merges]
    size, head = len(vocabulary), width // heads
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, text in enumerate(SPECIAL)]
    split = {"type": "Split", "pattern": {"Regex": "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                           "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                           "vocab": {text: i for i, text in enumerate(vocabulary)}, "merges": merges}}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size, "hidden_size": width, "intermediate_size": 2 * width,
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "hidden_act": "silu",
              "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False,
              "mlp_bias": False, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}
    named = {"tokenizer.json": tokenizer, "config.json": config,
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[1], "eos_token": SPECIAL[2],
                                       "add_bos_token": False, "chat_template": TEMPLATE}}
    for name, value in named.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    shapes = {"model.embed_tokens.weight": [size, width], "model.norm.weight": [width]}
    for l in range(layers):
        p = f"model.layers.{l}."
        shapes.update({p + "input_layernorm.weight": [width], p + "post_attention_layernorm.weight": [width],
                       p + "self_attn.q_proj.weight": [heads * head, width], p + "self_attn.k_proj.weight": [kv_heads * head, width],
                       p + "self_attn.v_proj.weight": [kv_heads * head, width], p + "self_attn.o_proj.weight": [width, heads * head],
                       p + "mlp.gate_proj.weight": [2 * width, width], p + "mlp.up_proj.weight": [2 * width, width],
                       p + "mlp.down_proj.weight": [width, 2 * width]})
    head_text, data = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * count if "norm" in name else [draw.gauss(0, 0.18) for _ in range(count)]
        head_text[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack("<%df" % count, *values)
    text = json.dumps(head_text).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
