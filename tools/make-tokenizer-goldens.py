#!/usr/bin/env python3
"""Makes the goldens of every kind of tokenizer.json that winnow reads, tests/golden/tokenizers.

A row of the grid is a model (one of tests/golden/bpe, or a Unigram model trained here) with other normalizers,
pre-tokenizers, decoders, post-processors, added tokens or flags. Hugging Face tokenizers encodes the valid UTF-8 lines of
tests/golden/bpe/lines.bin with it, special tokens as plain text and recognised, and decodes what it encoded. grid.json
has what each row changes, and the hash of all its tokens and texts (FNV-1a, 64 bits); grid.bin has a byte of the hash of
each line, which says where a difference is. The rows of refused.json are read by Hugging Face tokenizers and must be
refused by winnow; each has a word of the message.

Where winnow differs on purpose, lines are left out (docs/tokenizers.md): a special token's text as plain text hides added
tokens in Hugging Face tokenizers, and its Unigram models match the token all the same.

Needs: tools/python-env transformers
Usage: tools/make-tokenizer-goldens.py [FOLDER]        tests/golden/tokenizers
"""
import json
import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("transformers", "tokenizers")
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from varied_lines import words_text

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "tests", "golden")
MARK = "\u2581"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
SCHEMES = ["always", "first", "never"]


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def metaspace(scheme, cut=False):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cut}


def replace(a, b):
    return {"type": "Replace", "pattern": {"String": a}, "content": b}


def prepend(text):
    return {"type": "Prepend", "prepend": text}


def form(name):
    return {"type": name}


STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
LLAMA = sequence("normalizers", prepend(MARK), replace(" ", MARK))
BACK = [replace(MARK, " "), form("ByteFallback"), form("Fuse")]


def template(before=(), after=()):
    names = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in list(before) + list(after)}
    one = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    text = lambda k: {"Sequence": {"id": k, "type_id": 0}}
    around = lambda *inside: [one(n) for n, _ in before] + list(inside) + [one(n) for n, _ in after]
    return {"type": "TemplateProcessing", "single": around(text("A")), "pair": around(text("A"), text("B")),
            "special_tokens": names}


def added(base, *tokens):
    """Added tokens, (content, flags) with flags of l, r, s (single_word), n (normalized), c (special). Those that are no
    tokens of the vocabulary get the next ids, as Hugging Face tokenizers numbers them."""
    vocab = base["model"]["vocab"]
    known = vocab if isinstance(vocab, dict) else {p: i for i, (p, _) in enumerate(vocab)}
    free, out = max([t["id"] for t in base["added_tokens"]] + list(known.values())) + 1, []
    for content, flags in tokens:
        out.append({"id": known.get(content, free), "content": content, "single_word": "s" in flags, "lstrip": "l" in flags,
                    "rstrip": "r" in flags, "normalized": "n" in flags, "special": "c" in flags})
        free += content not in known
    return out


def bytes_rows(base):
    level = byte_level()
    pre = lambda *steps: {"pre_tokenizer": sequence("pretokenizers", *steps, level)}
    for prefix in (False, True):
        for regex in (False, True):
            yield f"ByteLevel prefix={prefix} regex={regex}", {"pre_tokenizer": byte_level(prefix, regex)}
    for invert in (False, True):
        for b in BEHAVIORS:
            yield f"Split regex {b} invert={invert}", pre(split({"Regex": CL100K}, b, invert))
            yield f"Split string {b} invert={invert}", pre(split({"String": " "}, b, invert))
            yield f"Split letters {b} invert={invert}", pre(split({"Regex": r"\w+|[^\w\s]+"}, b, invert))
    for each in (False, True):
        yield f"Digits individual={each}", pre({"type": "Digits", "individual_digits": each})
    for b in BEHAVIORS:
        yield f"Punctuation {b}", pre({"type": "Punctuation", "behavior": b})
    yield "Whitespace", pre(form("Whitespace"))
    yield "WhitespaceSplit", pre(form("WhitespaceSplit"))
    for scheme in SCHEMES:
        for cut in (False, True):
            yield f"Metaspace {scheme} split={cut}, bytes", pre(metaspace(scheme, cut))
    yield "Digits, Punctuation, Split", pre({"type": "Digits", "individual_digits": True},
                                            {"type": "Punctuation", "behavior": "Isolated"}, split({"Regex": CL100K}))
    yield "prefix behind a split", {"pre_tokenizer": sequence("pretokenizers", form("WhitespaceSplit"), byte_level(True, True))}
    for name in ("NFC", "NFD", "NFKC", "NFKD"):
        yield name, {"normalizer": form(name)}
    yield "Prepend", {"normalizer": prepend("x")}
    yield "Replace", {"normalizer": replace("th", "z")}
    yield "Replace by nothing", {"normalizer": replace(" ", "")}
    yield "normalizers in turn", {"normalizer": sequence("normalizers", form("NFD"), replace("e\u0301", "E"), prepend("<"), form("NFC"))}
    yield "no normalizer in a sequence", {"normalizer": sequence("normalizers")}
    yield "ignore_merges", {"model": {"ignore_merges": True}}
    more = lambda *tokens: {"added_tokens+": added(base, *tokens)}
    yield "added", more(("the", ""), ("them", ""), (" of", ""), ("\n\n", ""), ("    ", ""), ("ing", ""), ("t", ""))
    yield "added, lstrip", more(("the", "l"), ("=", "l"))
    yield "added, rstrip", more(("the", "r"), ("=", "r"))
    yield "added, both", more(("the", "lr"), (",", "lr"), ("a", "r"))
    yield "added, rstrip before spaces", more(("the", "r"), ("  ", ""), (" a", ""), ("x", "lr"))
    yield "added, single_word", more(("the", "s"), ("he", ""), ("a", "s"), ("is", "s"))
    yield "added, single_word and strips", more(("the", "slr"), ("a", "sl"), ("in", "sr"))
    yield "added, normalized", {"normalizer": form("NFC"), **more((" cafe\u0301", "n"), ("e\u0301", ""), ("x", "n"))}
    yield "added, normalized by Prepend", {"normalizer": prepend("z"), **more(("the", "n"), ("a", "ns"), ("of", "nlr"))}
    yield "added, normalized by Replace", {"normalizer": replace("th", "z"), **more(("the", "n"), ("the ", ""), ("ze", "nr"))}
    yield "special", more(("<s>", "c"), ("</s>", "c"), ("<repo_name>", "cl"), ("<unk>", "cr"), ("the", "cs"))
    yield "special, normalized", {"normalizer": form("NFC"), **more(("<s>", "cn"), ("</s>", "cnlr"), ("caf\u00e9", "cn"))}
    yield "special and added", more(("<s>", "c"), ("<repo", ""), ("a", ""), (">", ""))
    yield "ByteLevel post-processor", {"post_processor": byte_level(True, True)}
    yield "template", {"post_processor": template([("<|im_start|>", 1)])}
    yield "template, both ends", {"post_processor": template([("<|im_start|>", 1)], [("<|im_end|>", 2)])}
    yield "template, end", {"post_processor": template((), [("<|im_end|>", 2)])}
    yield "post-processors in turn", {"post_processor": sequence("processors", byte_level(), template([("<|im_start|>", 1)]))}


def marks_rows(base):
    """Of Llama 2's model."""
    back = sequence("decoders", *BACK)
    yield "Llama 2", {}
    yield "no space before", {"normalizer": replace(" ", MARK), "decoder": back}
    yield "Strip of nothing", {"decoder": sequence("decoders", *BACK, dict(STRIP, start=0))}
    yield "no Fuse", {"decoder": sequence("decoders", *BACK[:2])}
    for scheme in SCHEMES:
        for cut in (False, True):
            yield f"Metaspace {scheme} split={cut}", {"normalizer": None, "pre_tokenizer": metaspace(scheme, cut),
                                                      "decoder": sequence("decoders", form("ByteFallback"), metaspace(scheme, cut))}
    yield "Metaspace without a scheme", {"normalizer": None, "decoder": sequence("decoders", form("ByteFallback"), {
        "type": "Metaspace", "replacement": MARK, "add_prefix_space": True}), "pre_tokenizer": {
            "type": "Metaspace", "replacement": MARK, "add_prefix_space": True}}
    yield "Metaspace and Strip", {"normalizer": None, "pre_tokenizer": metaspace("first")}
    yield "Metaspace behind WhitespaceSplit", {"normalizer": None, "pre_tokenizer": sequence(
        "pretokenizers", form("WhitespaceSplit"), metaspace("always"))}
    yield "split, then Metaspace first", {"normalizer": None, "pre_tokenizer": sequence(
        "pretokenizers", split({"String": " "}, "MergedWithPrevious"), metaspace("first"))}
    for b in BEHAVIORS:
        yield f"marks, Split {b}", {"pre_tokenizer": split({"String": MARK}, b)}
    yield "marks, Digits", {"pre_tokenizer": {"type": "Digits", "individual_digits": True}}
    yield "marks, Punctuation", {"pre_tokenizer": {"type": "Punctuation", "behavior": "Isolated"}}
    yield "marks, Whitespace", {"normalizer": None, "pre_tokenizer": form("Whitespace"), "decoder": back}
    for name in ("NFC", "NFKD"):
        yield f"marks, {name}", {"normalizer": sequence("normalizers", form(name), prepend(MARK), replace(" ", MARK))}
    for fuse in (False, True):
        yield f"unknown, fuse={fuse}", {"model": {"byte_fallback": False, "fuse_unk": fuse}}
    yield "unknown dropped", {"model": {"byte_fallback": False, "unk_token": None}}
    yield "ignore_merges, marks", {"model": {"ignore_merges": True}, "pre_tokenizer": split({"String": MARK}, "MergedWithNext")}
    more = lambda *tokens: {"added_tokens+": added(base, *tokens)}
    yield "marks, added", more(("the", ""), (" of", ""), ("\n", ""), ("  ", ""), (MARK, ""))
    yield "marks, added, normalized", more(("the", "n"), ("honk", "n"), ("a", "n"), (",", "n"))
    yield "marks, added, normalized strips", more(("the", "nlr"), ("a", "nl"), (",", "nr"), ("of", "ns"))
    yield "marks, added, strips", more(("the", "lr"), ("a", "l"), (",", "r"), ("of", "s"))
    yield "marks, special", more(("<|im_start|>", "c"), ("<|im_end|>", "clr"), ("<repo_name>", "c"))
    for scheme in SCHEMES:
        yield f"Metaspace {scheme}, added", {"normalizer": None, "pre_tokenizer": metaspace(scheme), "decoder": sequence(
            "decoders", form("ByteFallback"), metaspace(scheme)), **more(("the", ""), (",", "r"), ("of", "ls"), ("<|im_end|>", "c"))}
    yield "marks, template", {"post_processor": template([("<s>", 1)], [("</s>", 2)])}
    yield "marks, no template", {"post_processor": None}


def unigram_rows(base):
    pieces = lambda *tokens: {"added_tokens+": added(base, *tokens)}
    forms = [(f"Unigram Metaspace {s} split={cut}", {"pre_tokenizer": metaspace(s, cut), "decoder": metaspace(s, cut)})
             for s in SCHEMES for cut in (False, True)]
    forms += [("Unigram Prepend", {"pre_tokenizer": None, "normalizer": LLAMA, "decoder": sequence("decoders", *BACK, STRIP)}),
              ("Unigram Replace", {"pre_tokenizer": None, "normalizer": replace(" ", MARK), "decoder": sequence("decoders", *BACK)}),
              ("Unigram Metaspace and Strip", {"pre_tokenizer": metaspace("first"), "decoder": sequence("decoders", *BACK, STRIP)})]
    for name, change in forms:
        yield name, change
        yield name + ", added", {**change, **pieces(("the", ""), (",", ""))}
    yield "Unigram template", {"post_processor": template([("<s>", 1)])}


def refused_rows():
    """(base, change, word of the message)"""
    for name in ("BertNormalizer", "StripAccents", "Lowercase", "Nmt", "ByteLevel"):
        extra = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True} if name[0:2] == "Be" else {}
        yield "gpt2", {"normalizer": {"type": name, **extra}}, name
        yield "unigram", {"normalizer": {"type": name, **extra}}, name
    yield "gpt2", {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, "Strip"
    yield "gpt2", {"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}}, "regular expression"
    yield "unigram", {"normalizer": form("NFC")}, "NFC"
    yield "unigram", {"normalizer": replace("a", "b")}, "Replace"
    level = byte_level()
    for name, extra in (("BertPreTokenizer", {}), ("CharDelimiterSplit", {"delimiter": "-"}), ("UnicodeScripts", {}),
                        ("FixedLength", {"length": 5})):
        yield "gpt2", {"pre_tokenizer": sequence("pretokenizers", {"type": name, **extra}, level)}, name
        yield "unigram", {"pre_tokenizer": {"type": name, **extra}}, name
    yield "gpt2", {"pre_tokenizer": sequence("pretokenizers", level, form("Whitespace"))}, "Whitespace"
    yield "llama2", {"pre_tokenizer": dict(metaspace("always"), replacement="_")}, "_"
    yield "unigram", {"pre_tokenizer": dict(metaspace("always"), replacement="_")}, "_"
    yield "unigram", {"normalizer": LLAMA}, "twice"
    for name, extra in (("WordPiece", {"prefix": "##", "cleanup": True}), ("BPEDecoder", {"suffix": "</w>"}),
                        ("CTC", {"pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True})):
        for base in ("gpt2", "llama2", "unigram"):
            yield base, {"decoder": {"type": name, **extra}}, name
    yield "llama2", {"decoder": None}, "null"
    yield "unigram", {"decoder": None}, "null"
    yield "llama2", {"decoder": sequence("decoders", replace(MARK, " "), form("Fuse"))}, "ByteFallback"
    yield "llama2", {"decoder": sequence("decoders", replace(MARK, " "), form("ByteFallback"), STRIP, form("Fuse"))}, "Strip"
    yield "llama2", {"decoder": sequence("decoders", form("ByteFallback"), form("Fuse"), STRIP, replace(MARK, " "))}, "Replace"
    yield "llama2", {"decoder": sequence("decoders", form("ByteFallback"), form("Fuse"), metaspace("always"))}, "Metaspace"
    yield "llama2", {"decoder": sequence("decoders", replace(MARK, " "), form("Fuse"), form("ByteFallback"))}, "ByteFallback"
    yield "llama2", {"decoder": sequence("decoders", *BACK, dict(STRIP, start=2))}, "Strip"
    yield "llama2", {"decoder": sequence("decoders", *BACK, dict(STRIP, stop=1))}, "Strip"
    yield "llama2", {"decoder": sequence("decoders", replace("a", "b"), *BACK)}, "Replace"
    for base, sep in (("gpt2", ["<|im_end|>", 2]), ("unigram", ["</s>", 2])):
        cls = ["<|im_start|>", 1] if base == "gpt2" else ["<s>", 1]
        yield base, {"post_processor": {"type": "BertProcessing", "sep": sep, "cls": cls}}, "BertProcessing"
        yield base, {"post_processor": {"type": "RobertaProcessing", "sep": sep, "cls": cls, "trim_offsets": True,
                                        "add_prefix_space": True}}, "RobertaProcessing"
    yield "gpt2", {"post_processor": template([("<|im_start|>", 1), ("<|im_end|>", 2)])}, "in a row"
    yield "gpt2", {"model": {"dropout": 0.5}}, "dropout"
    for key, affix in (("continuing_subword_prefix", "##"), ("end_of_word_suffix", "</w>")):
        yield "gpt2", {"model": {"type": "BPE", key: affix, "vocab": {"a": 0}, "merges": []}}, key
    yield "gpt2", {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, "WordLevel"
    yield "gpt2", {"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "continuing_subword_prefix": "##",
                             "max_input_chars_per_word": 100}}, "WordPiece"
    for flag in ("single_word", "lstrip", "rstrip"):
        token = {"id": 3, "content": "the", "special": False, "normalized": False, "single_word": False, "lstrip": False,
                 "rstrip": False}
        yield "unigram", {"added_tokens+": [dict(token, **{flag: True})]}, flag


def composed(base, change):
    """A row's tokenizer.json; the test composes it in the same way."""
    out = json.loads(json.dumps(base))
    for key, value in change.items():
        if key == "model":
            if "type" in value:
                out["model"] = dict(value)
            else:
                out["model"].update(value)
        elif key == "added_tokens+":
            out["added_tokens"] += value
        else:
            out[key] = value
    return out


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & (2 ** 64 - 1)
    return h


def unigram():
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(words_text(), trainers.UnigramTrainer(
        vocab_size=420, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
    j = json.loads(t.to_str())
    j["decoder"] = metaspace("always")
    # Scores that a float holds, as those of published models.
    vocab = j["model"]["vocab"] = [[p, struct.unpack("<f", struct.pack("<f", s))[0]] for p, s in j["model"]["vocab"]]
    at = [p for p, _ in vocab].index(MARK)
    assert at > 2
    for i, wanted in enumerate(["the", ","]):  # pieces that rows make added tokens
        here = [p for p, _ in vocab].index(wanted) if wanted in [p for p, _ in vocab] else None
        if here is None:
            vocab.insert(3 + i, [wanted, -6.5])
        else:
            vocab[3 + i], vocab[here] = vocab[here], vocab[3 + i]
    return j


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(GOLDEN, "tokenizers")
    os.makedirs(out, exist_ok=True)
    bases = {name: json.load(open(os.path.join(GOLDEN, "bpe", name + ".json"))) for name in ("gpt2", "llama2")}
    bases["unigram"] = unigram()
    with open(os.path.join(out, "unigram.json"), "w") as f:
        json.dump(bases["unigram"], f, separators=(",", ":"))
    data, lines, at = open(os.path.join(GOLDEN, "bpe", "lines.bin"), "rb").read(), [], 0
    while at < len(data):
        n = struct.unpack_from("<H", data, at)[0]
        try:
            lines.append(data[at + 2:at + 2 + n].decode())
        except UnicodeDecodeError:
            pass
        at += 2 + n
    kinds = (("gpt2", bytes_rows), ("llama2", marks_rows), ("unigram", unigram_rows))
    rows = [(name, *row) for name, rows_of in kinds for row in rows_of(bases[name])]
    table, marks = [], bytearray()
    for base, name, change in rows:
        whole = composed(bases[base], change)
        t = Tokenizer.from_str(json.dumps(whole))
        specials = [a["content"] for a in whole["added_tokens"] if a["special"]]
        sums, columns = [], []
        for special in (False, True):
            t.encode_special_tokens = not special
            ids = [[] if not special and any(s in line for s in specials)
                   else t.encode(line, add_special_tokens=False).ids for line in lines]
            columns.append([struct.pack(f"<{len(i)}i", *i) for i in ids])
            if special:
                columns.append([t.decode(i).encode() for i in ids])
        for column in columns:
            hashes = [fnv(b) for b in column]
            sums.append("%016x" % fnv(b"".join(struct.pack("<Q", h) for h in hashes)))
            marks += bytes(h & 255 for h in hashes)
        ends = t.encode("", add_special_tokens=True).ids
        first = t.encode("a", add_special_tokens=True).ids
        plain = t.encode("a", add_special_tokens=False).ids
        before = first[:-len(plain)] if not ends or first[-len(plain):] == plain else first[:first.index(plain[0])]
        after = first[len(before) + len(plain):]
        table.append({"base": base, "name": name, "change": change, "sums": sums, "bos": before[0] if before else -1,
                      "eos": after[0] if after else -1})
    with open(os.path.join(out, "grid.json"), "w") as f:
        json.dump(table, f, separators=(",", ":"))
    with open(os.path.join(out, "grid.bin"), "wb") as f:
        f.write(marks)
    refused = []
    for base, change, word in refused_rows():
        Tokenizer.from_str(json.dumps(composed(bases[base], change)))  # they are valid
        refused.append({"base": base, "change": change, "word": word})
    with open(os.path.join(out, "refused.json"), "w") as f:
        json.dump(refused, f, separators=(",", ":"))
    print(f"{len(table)} rows of {len(lines)} lines, {len(refused)} refusals")


if __name__ == "__main__":
    main()
