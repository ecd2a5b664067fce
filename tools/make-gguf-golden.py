#!/usr/bin/env python3
"""Makes tests/golden/gguf/: a GGUF file with a tensor of every supported type and metadata of every kind, and the
weights as the package `gguf` (llama.cpp's own reader) decodes them.

  tools/make-gguf-golden.py tests/golden/gguf        needs tools/python-env transformers
"""
import json, struct, sys
from pathlib import Path
import os

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("transformers", "gguf", "numpy")
import gguf
import numpy as np
from gguf.quants import dequantize

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# The positions of a block's half floats.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
ROWS, COLUMNS = 3, 512


def raw(rng, name):
    """[ROWS, bytes] random blocks whose scales are finite, one of them subnormal."""
    if name == "F32":
        return rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    if name == "F16":
        x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float16)
        x[0, :3] = [6e-8, -3e-5, 65504]
        return x
    if name == "BF16":
        return (rng.standard_normal((ROWS, COLUMNS)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (ROWS * COLUMNS // weights, size), dtype=np.uint8)
    for at in HALVES[name]:
        d = (rng.standard_normal(len(blocks)) * 0.05).astype(np.float16)
        d[0] = np.float16(3e-6)
        blocks[:, at:at + 2] = d.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(ROWS, -1)


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    w = gguf.GGUFWriter(out / "types.gguf", "golden")
    for kind, value in [("uint8", 200), ("int8", -100), ("uint16", 60000), ("int16", -30000), ("uint32", 4000000000),
                        ("int32", -2000000000), ("uint64", 2**63 + 1), ("int64", -2**62), ("float32", 0.1),
                        ("float64", 0.1), ("bool", True), ("string", "naïve ☂")]:
        getattr(w, f"add_{kind}")(f"kind.{kind}", value)
    w.add_array("array.int32", [3, -1, 7])
    w.add_array("array.float32", [0.5, -2.25])
    w.add_array("array.string", ["", "a", "two words", "☂"])
    w.add_array("array.bool", [True, False])
    expected, head, body = {}, {}, b""
    for name in TYPES:
        data = raw(rng, name)
        kind = gguf.GGMLQuantizationType[name]
        w.add_tensor(name.lower(), data, raw_dtype=kind)
        values = data if name == "F32" else data.astype(np.float32) if name == "F16" else dequantize(data, kind)
        values = np.ascontiguousarray(values, dtype="<f4").reshape(ROWS, COLUMNS)
        # every seventh weight reveals a wrong place or bit, in a seventh of the size
        values = values[:, ::7].copy()
        head[name.lower()] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(body), len(body) + values.nbytes]}
        body += values.tobytes()
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    (out / "types.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


main()
