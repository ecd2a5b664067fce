#!/usr/bin/env python3
"""Prefill and decoding of a GGUF file by llama-cpp-python: the counterpart of real.c, for bench/real-models.

  llama.py MODEL THREADS CONTEXT ROUNDS PROMPT,PROMPT,... DECODED FLASH(0|1)

The low-level interface, which does what `Llama` does without its Python work between tokens: a batch of up to 2,048
tokens, logits of the last one alone, and the logits are fetched. Keys and values in half floats, its default."""
import ctypes
import json
import resource
import sys
import time

import llama_cpp


def quiet(level, text, user):
    if level == 4 and b"error" in text:
        sys.stderr.write(text.decode(errors="replace"))


class Tokens:
    """The generator of real.c."""

    def __init__(self, seed, vocabulary):
        self.state, self.vocabulary = seed & 0xffffffff, vocabulary

    def next(self):
        self.state = (self.state * 1664525 + 1013904223) & 0xffffffff
        return 100 + (self.state >> 8) % (self.vocabulary - 100)


def main():
    path, threads, context, rounds, prompts, decoded, flash = sys.argv[1:]
    callback = llama_cpp.llama_log_callback(quiet)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    start = time.perf_counter()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        sys.exit(f"llama.py: {path} does not load")
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = int(context), 2048, 512
    params.n_threads = params.n_threads_batch = int(threads)
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = int(flash)
    else:
        params.flash_attn = bool(int(flash))
    ctx = llama_cpp.llama_init_from_model(model, params)
    if not ctx:
        sys.exit("llama.py: no context")
    loaded = time.perf_counter() - start
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    memory = llama_cpp.llama_get_memory(ctx)

    def feed(tokens):
        begin = time.perf_counter()
        for i in range(0, len(tokens), 2048):
            part = tokens[i:i + 2048]
            array = (ctypes.c_int32 * len(part))(*part)
            if llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(array, len(part))):
                sys.exit("llama.py: llama_decode failed")
        llama_cpp.llama_get_logits_ith(ctx, -1)[0]  # waits for them
        return time.perf_counter() - begin

    runs = []
    for r in range(int(rounds)):
        for T in map(int, prompts.split(",")):
            tokens = Tokens(r * 7919 + T, vocabulary)
            llama_cpp.llama_memory_clear(memory, True)
            prompt = [tokens.next() for _ in range(T)]
            prefill = feed(prompt)
            runs.append({"prompt": T, "prefill_s": prefill, "decode_s": [feed([tokens.next()])
                                                                        for _ in range(int(decoded))]})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"load_s": loaded, "runs": runs, "peak_bytes": peak, "version": llama_cpp.__version__,
                      "features": llama_cpp.llama_print_system_info().decode().strip()}))


if __name__ == "__main__":
    main()
