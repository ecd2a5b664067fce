#!/usr/bin/env python3
"""Makes tests/golden/peft: adapters of the tiny models in tests/golden/hf as `peft` saves them, and peft's logits.

Usage: tools/make-goldens-peft.py [OUT]          needs tools/python-env lm-eval

Each NAME/ has a random adapter, adapter_config.json and adapter_model.safetensors. NAME.logits.safetensors next to it
has tokens [B,T] and logits [B,T,V] in float32, computed in double. Together they cover ranks and alphas by module,
rank-stabilised scaling, fused (Phi-3) and transposed (GPT-2) projections, and an output, whose own weights peft saves
as well. The last three models tie the output to the embedding: one has updates of the output, one of the embedding, and
one of both as the same.
"""
import os, shutil, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("lm-eval", "torch", "transformers", "safetensors", "peft")
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

tests = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/golden")
out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(tests, "peft")
CASES = {
    "llama": dict(r=4, lora_alpha=6, target_modules=["q_proj", "k_proj", "v_proj", "down_proj", "lm_head"]),
    "gpt2": dict(r=4, lora_alpha=8, target_modules=["c_attn", "mlp.c_proj"], rank_pattern={"c_attn": 2},
                 alpha_pattern={"mlp.c_proj": 3}, fan_in_fan_out=True),
    "phi3": dict(r=3, lora_alpha=6, target_modules=["qkv_proj", "gate_up_proj"], use_rslora=True),
    "gemma3": dict(r=3, lora_alpha=6, target_modules=["q_proj", "lm_head"]),
    "gemma2": dict(r=2, lora_alpha=6, target_modules=["v_proj", "embed_tokens"]),
    "llama-bias": dict(r=2, lora_alpha=5, target_modules=["o_proj", "embed_tokens"], ensure_weight_tying=True),
}

shutil.rmtree(out, ignore_errors=True)
os.makedirs(out)
for seed, (name, how) in enumerate(CASES.items()):
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(os.path.join(tests, "hf", name), dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **how))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key: p.normal_(0, 0.2)
    folder = os.path.join(out, name)
    model.peft_config["default"].base_model_name_or_path = ""
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    tokens = torch.randint(0, base.config.vocab_size, (2, 18), generator=torch.Generator().manual_seed(7))
    with torch.no_grad(): y = model.double().eval()(tokens).logits
    save_file({"tokens": tokens.to(torch.int32).contiguous(), "logits": y.float().contiguous()},
              os.path.join(out, name + ".logits.safetensors"))
