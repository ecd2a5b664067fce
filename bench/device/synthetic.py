"""Models of a known shape with random weights, as GGUF files: for speed, which does not ask what weights say.

  synthetic.py SHAPE FILE.gguf

8b: Llama 3's 8B in the types of Q4_K_M; 135m: SmolLM2's 135M in Q4_1; tiny: for rehearsals. A block of random weights is
repeated, so that 5 GB are written as fast as memory takes them. Python's standard library alone.
"""
import os
import random
import struct
import sys

F32, Q4_1, Q4_K, Q6_K = 0, 3, 12, 14
# type: weights and bytes of a block; where its half floats lie and what they are
BLOCKS = {Q4_1: (32, 20, {0: 0.006, 2: -0.045}), Q4_K: (256, 144, {0: 1.5e-4, 2: 1.1e-3}), Q6_K: (256, 210, {208: 1.5e-5})}
SHAPES = {
    "8b": {"layers": 32, "width": 4096, "heads": 32, "kv": 8, "ffn": 14336, "vocab": 128256, "type": Q4_K, "more": Q6_K,
           "tied": False},
    "135m": {"layers": 30, "width": 576, "heads": 9, "kv": 3, "ffn": 1536, "vocab": 49152, "type": Q4_1, "more": Q4_1,
             "tied": True},
    "tiny": {"layers": 2, "width": 64, "heads": 4, "kv": 2, "ffn": 128, "vocab": 320, "type": Q4_1, "more": Q4_1,
             "tied": True},
}
ALIGNMENT = 32


def tensors(s):
    """Name, columns, rows, type of each; in Q4_K_M half of the layers have Q6_K in attn_v and ffn_down."""
    C, n, kv = s["width"], s["layers"], s["width"] // s["heads"] * s["kv"]
    yield "token_embd.weight", C, s["vocab"], s["more"] if s["tied"] else s["type"]
    for i in range(n):
        more = s["more"] if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2 else s["type"]
        for name, columns, rows, kind in (
                ("attn_norm", C, 1, F32), ("attn_q", C, C, s["type"]), ("attn_k", C, kv, s["type"]), ("attn_v", C, kv, more),
                ("attn_output", C, C, s["type"]), ("ffn_norm", C, 1, F32), ("ffn_gate", C, s["ffn"], s["type"]),
                ("ffn_up", C, s["ffn"], s["type"]), ("ffn_down", s["ffn"], C, more)):
            yield f"blk.{i}.{name}.weight", columns, rows, kind
    yield "output_norm.weight", C, 1, F32
    if not s["tied"]:
        yield "output.weight", C, s["vocab"], s["more"]


def text(x):
    return struct.pack("<Q", len(x)) + x.encode()


def blocks(kind, count):
    """So many random blocks, whose scales are ordinary numbers."""
    _, size, halves = BLOCKS[kind]
    data = bytearray(random.Random(kind).randbytes(size * count))
    for at, value in halves.items():
        half = struct.pack("<e", value)
        for i in range(count):
            data[i * size + at:i * size + at + 2] = half
    return bytes(data)


def write(shape, path):
    s = SHAPES[shape]
    keys = {"block_count": s["layers"], "context_length": 8192, "embedding_length": s["width"], "feed_forward_length": s["ffn"],
            "attention.head_count": s["heads"], "attention.head_count_kv": s["kv"]}
    reals = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0}
    head = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for key, value in keys.items():
        head += text("llama." + key) + struct.pack("<II", 4, value)
    for key, value in reals.items():
        head += text("llama." + key) + struct.pack("<If", 6, value)
    infos, at, listed = b"", 0, list(tensors(s))
    sizes = []
    for name, columns, rows, kind in listed:
        weights, size, _ = BLOCKS.get(kind, (1, 4, {}))
        sizes.append(columns * rows // weights * size)
        shape_of = (columns, rows) if kind != F32 else (columns,)
        infos += text(name) + struct.pack("<I", len(shape_of)) + struct.pack(f"<{len(shape_of)}Q", *shape_of)
        infos += struct.pack("<IQ", kind, at)
        at += -(-sizes[-1] // ALIGNMENT) * ALIGNMENT
    count = {kind: blocks(kind, 8192) for kind in {t[3] for t in listed} - {F32}}
    with open(path + ".part", "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(listed), 1 + len(keys) + len(reals)) + head + infos)
        f.write(bytes(-f.tell() % ALIGNMENT))
        for (_, columns, _, kind), size in zip(listed, sizes):
            if kind == F32:
                f.write(struct.pack("<f", 1.0) * columns)
            else:
                whole = memoryview(count[kind])
                for _ in range(size // len(whole)):
                    f.write(whole)
                f.write(whole[:size % len(whole)])
            f.write(bytes(-size % ALIGNMENT))
    os.replace(path + ".part", path)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(__doc__.strip())
    write(*sys.argv[1:])
