#!/usr/bin/env python3
"""OpenVINO GenAI on the CPU, for bench/real-models: rates of prompts and of decoding as lines of JSON.

  ov_genai.py MODEL [--threads 2] [--prompts 128,512] [--depths 0,512] [--decoded 16] [--hint f32,bf16] [--attention PA,SDPA]
  ov_genai.py --convert int8|int4|fp16 HUGGING-FACE-FOLDER TO     by optimum-intel, in its usual way
                                                                   (int4: in groups of 64; rows of 576 have no whole 128)

MODEL is a folder that --convert made, or a GGUF file of a family that OpenVINO GenAI reads. Each combination of inference
precision (--hint) and attention kernel loads the model once and runs everything twice; the second time counts. A prompt
is random tokens, other ones each time, and prefixes are not cached. The rate of a prompt is its tokens divided by the time
to the first token; that of decoding is of the tokens after it. Everything else is as OpenVINO chooses."""
import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import python_env

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("model")
p.add_argument("to", nargs="?")
p.add_argument("--convert", choices=("int8", "int4", "fp16"))
p.add_argument("--threads", type=int, default=2)
p.add_argument("--prompts", default="128,512")
p.add_argument("--depths", default="0,512")
p.add_argument("--decoded", type=int, default=16)
p.add_argument("--hint", default="f32,bf16")
p.add_argument("--attention", default="PA,SDPA")
a = p.parse_args()
python_env.need("openvino", "openvino_genai")

if a.convert:
    tool = os.path.join(os.path.dirname(sys.executable), "optimum-cli")
    sys.exit(subprocess.run([tool, "export", "openvino", "--model", a.model, "--task", "text-generation-with-past",
                             "--weight-format", a.convert, *(["--group-size", "64"] if a.convert == "int4" else []), a.to],
                            stdout=subprocess.DEVNULL, check=False).returncode)

import numpy
import openvino
import openvino_genai as genai

LEAST, MOST = 100, 40000 # ordinary tokens of any of the models' vocabularies
random = numpy.random.default_rng()


def generate(pipeline, length, new):
    """Milliseconds to the first token, and for each of the others."""
    ids = random.integers(LEAST, MOST, size=(1, length), dtype=numpy.int64)
    config = genai.GenerationConfig(max_new_tokens=new, min_new_tokens=new, ignore_eos=True, do_sample=False)
    inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    metrics = pipeline.generate(inputs, config).perf_metrics
    return metrics.get_ttft().mean, metrics.get_tpot().mean if new > 1 else None


def points(pipeline):
    rates = {}
    for length in (int(x) for x in a.prompts.split(",") if x):
        rates[f"prompt {length}"] = 1e3 * length / generate(pipeline, length, 1)[0]
    for depth in (int(x) for x in a.depths.split(",") if x):
        rates[f"decode {depth}"] = 1e3 / generate(pipeline, max(depth, 1), a.decoded + 1)[1]
    return rates


for hint in a.hint.split(","):
    for attention in a.attention.split(","):
        more = {}
        if attention == "PA":
            more["scheduler_config"] = genai.SchedulerConfig()
            more["scheduler_config"].enable_prefix_caching = False
        pipe = genai.LLMPipeline(a.model, "CPU", INFERENCE_PRECISION_HINT=hint, INFERENCE_NUM_THREADS=a.threads,
                                 ATTENTION_BACKEND=attention, **more)
        points(pipe)
        print(json.dumps({"setting": f"{hint}, {attention}", "rates": points(pipe)}), flush=True)
