#!/usr/bin/env python3
"""Makes the goldens of the BPE tokenizers, tests/golden/bpe.

Hugging Face tokenizers trains small tokenizers, one for each published way to split texts, and encodes more than a
thousand varied lines with them: all scripts, emoji, white space of all kinds, code, broken UTF-8 (each byte that is not
part of valid UTF-8 read as U+FFFD). For each line and tokenizer the golden holds the number of tokens and their hash
(FNV-1a over 32-bit little-endian ids), once with special tokens as plain text and once with special tokens recognised.
gguf-py writes GGUF files with the same vocabularies. There is also a SentencePiece model as a GGUF file, with
sentencepiece's tokens for the lines.

Needs: tools/python-env transformers
Usage: tools/make-bpe-goldens.py [FOLDER]        tests/golden/bpe
"""
import codecs
import io
import os
import struct
import sys
import os

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("transformers", "tokenizers", "gguf", "sentencepiece", "numpy")
import gguf
import numpy as np
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from varied_lines import varied_lines, words_text

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER +
          r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(pre, normalizer=None, size=640, alphabet=True):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(words_text(), trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else []))
    return t


def change(t, f):
    import json
    j = json.loads(t.to_str())
    f(j)
    return Tokenizer.from_str(json.dumps(j))


def llama2():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.pre_tokenizer = pre_tokenizers.Metaspace()  # for training only: merges stay within words
    t.train_from_iterator(words_text(), trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)],
        show_progress=False))

    def finish(j):
        j["pre_tokenizer"] = None
        j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    t = change(t, finish)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def gemma():
    """Like Gemma's: spaces are marked, none is put before a text, and runs of white space are added tokens."""
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # for training only: merges stay within words
    t.train_from_iterator(words_text(), trainers.BpeTrainer(
        vocab_size=700, special_tokens=first + ["<0x%02X>" % b for b in range(256)], show_progress=False))

    def finish(j):
        j["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                              "invert": False}
        j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    t = change(t, finish)
    t.add_tokens([AddedToken(text * n, normalized=False) for text in ("\n", "\u2581", "\t") for n in (2, 3, 4)])
    t.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return t


def added():
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), normalizers.NFC())
    t.add_tokens([AddedToken("<repo_name>", normalized=False), AddedToken("    ", normalized=False),
                  AddedToken("the", normalized=True, lstrip=True), AddedToken("caf\u00e9", normalized=True),
                  AddedToken("x =", normalized=False, rstrip=True), AddedToken("<repo", normalized=False)])
    return t


def tokenizers():
    tekken = byte_level(split(TEKKEN))
    llama3 = byte_level(split(CL100K % r"\p{N}{1,3}"))
    for name, t in (("llama3", llama3), ("tekken", tekken)):
        t = change(t, lambda j: j["model"].update(ignore_merges=True))
        t.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
        yield name, t
    yield "gpt2", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    yield "qwen2", byte_level(split(CL100K % r"\p{N}"), normalizers.NFC())
    yield "smollm", byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                        pre_tokenizers.ByteLevel(add_prefix_space=False)]), alphabet=False)
    yield "added", added()
    yield "llama2", llama2()
    yield "gemma", gemma()


def replace_each(error):
    return "\ufffd", error.start + 1


def digest(ids):
    h = 0xCBF29CE484222325
    for b in np.asarray(ids, "<i4").tobytes():
        h = ((h ^ b) * 0x100000001B3) & (2 ** 64 - 1)
    return struct.pack("<HI", len(ids), (h ^ h >> 32) & 0xFFFFFFFF)


def write_gguf(path, model, pre, tokens, types, merges=None, scores=None, bos=None, eos=None):
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(model)
    if pre:
        w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    if scores:
        w.add_token_scores(scores)
    if merges:
        w.add_token_merges(merges)
    w.add_bos_token_id(bos)
    w.add_eos_token_id(eos)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def bpe_gguf(path, pre, t):
    import json
    j = json.loads(t.to_str())
    tokens = [k for k, _ in sorted(j["model"]["vocab"].items(), key=lambda kv: kv[1])]
    special = {a["id"] for a in j["added_tokens"]}
    write_gguf(path, "gpt2", pre, tokens, [3 if i in special else 1 for i in range(len(tokens))],
               [" ".join(m) for m in j["model"]["merges"]], bos=1, eos=2)


def spm_gguf(path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words_text()), model_writer=model, model_type="bpe", vocab_size=560, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.99, minloglevel=3)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    n = sp.get_piece_size()
    kind = lambda i: 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1
    write_gguf(path, "llama", None, [sp.id_to_piece(i) for i in range(n)], [kind(i) for i in range(n)],
               scores=[sp.get_score(i) for i in range(n)], bos=1, eos=2)
    return sp


def marked(path):
    """A SentencePiece model with Mistral's control tokens, for chats."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words_text()), model_writer=model, model_type="bpe", vocab_size=560, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.99, minloglevel=3,
        control_symbols=["[INST]", "[/INST]"])
    with open(path, "wb") as f:
        f.write(model.getvalue())


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                             "..", "tests", "golden", "bpe")
    os.makedirs(out, exist_ok=True)
    codecs.register_error("each", replace_each)
    marked(os.path.join(out, "inst.model"))
    lines = varied_lines()
    with open(os.path.join(out, "lines.bin"), "wb") as f:
        for line in lines:
            f.write(struct.pack("<H", len(line)) + line)
    for name, t in tokenizers():
        t.save(os.path.join(out, name + ".json"), pretty=False)
        with open(os.path.join(out, name + ".ids"), "wb") as f:
            for line in lines:
                text = line.decode("utf-8", "each")
                t.encode_special_tokens = True
                f.write(digest(t.encode(text, add_special_tokens=False).ids))
                t.encode_special_tokens = False
                f.write(digest(t.encode(text, add_special_tokens=False).ids))
        if name in ("smollm", "llama3"):
            bpe_gguf(os.path.join(out, name + ".gguf"), {"smollm": "smollm", "llama3": "llama-bpe"}[name], t)
        print(f"{name}: {t.get_vocab_size()} tokens, {len(lines)} lines")
    sp = spm_gguf(os.path.join(out, "spm.gguf"))
    with open(os.path.join(out, "spm.ids"), "wb") as f:
        for line in lines:
            try:
                ids = sp.encode(line.decode())
            except UnicodeDecodeError:
                ids = []
            f.write(digest(ids) + digest(ids))


if __name__ == "__main__":
    main()
