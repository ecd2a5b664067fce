"""Lines of text that tokenizers tend to get wrong, for tools/make-bpe-goldens.py and tools/check-tokenizer. They are
the same in every run."""
import random
import unicodedata

FIXED = [
    "", " ", "  ", "\t", "\n", "\r\n", "\n\n\n", " \n \n", "a", " a", "a ", "  a  b   c", "Hello, world!",
    "it's we're I'll you'd they've I'm don't DON'T IT'S WE'LL", "'s 'S '\u017f 'LL 'Ll ' s", "line\r\nline\r\n\r\nend\r",
    "a\n\nb\n \nc\n\n\n  d", "x = [1,2,3];  // comment\n\tif (x) { return x->y; }", "x =   y", "the cafe\u0301 the caf\u00e9",
    "def f(x):\n    return x**2\n\n\nclass A:\n\tpass\n        deep\n", "1234567890 3.14159 1e-10 0xFF 1,000,000",
    "\u00bd \u2167 \u0663\u0664\u0665 \u4e00\u4e8c\u4e09 \u00b2\u00b3\u00b9 \u2460 \U0001d7d8", "<|im_start|>user\nhi<|im_end|>",
    "<|endoftext|><|endoftext|>", "<repo_name>x<repo>y<repo_name", "<s></s><unk> <0x41>", "</s>a",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u043b\u043a\u0430", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30ab\u30bf",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "Xin ch\u00e0o th\u1ebf gi\u1edbi",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f469\U0001f3fd\u200d\U0001f4bb \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "e\u0301 \u00e9 \u00c5 A\u030a \u212b \ufb01 \u1e9b\u0323", "a\u0327\u0301 a\u0301\u0327 \u1100\u1161\u11a8 \uac01", "\u0300lead",
    "\u00a0nbsp\u2003em\u3000ideo\u200bzwsp\u2028ls\u2029ps\u180emvs\u0085nel\u1680og\u202f\u205f", "\x00\x01\x1c\x1f\x7f\x80",
    "z\u0337a\u0338\u0322l\u0336g\u0337o\u0335", "\U0001d573\U0001d58a \U00010348 \U0002070e \U0010fffd", "https://example.com/a?b=c&d=%20#x",
    "C:\\Windows\\System32 ~/.bashrc /usr/bin", "$$E=mc^2$$ \\frac{1}{2}", "a" * 200, " " * 100 + "x", "ab" * 60, "\n" * 50 + "x",
    "-----=====_____*****", "'''\"\"\"```", "\ufeffbom", "\u2026\u201cquotes\u201d \u2013 \u2014 \u2018x\u2019", "\ufdfa \ufdfd", "\u01c5 \u01c8 \u00aa\u00ba",
    "camelCase HTTPServer XMLHttpRequest iPhone eBay", "\u2581under\u2581score \u2581", "\u0130stanbul \u0131\u015f\u0131k", "\ufffd\ufffd",
]
BLOCKS = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x58F), (0x590, 0x5FF),
          (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0xF00, 0xFFF), (0x10A0, 0x10FF),
          (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1780, 0x17FF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
          (0x20A0, 0x214F), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x3040, 0x30FF), (0x4E00, 0x9FA5),
          (0xAC00, 0xD7A3), (0xFB00, 0xFDFF), (0xFF00, 0xFFEF), (0x10330, 0x1034A), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F)]
WORDS = ("the of and to in is that it was for on are as with his they at be this have from or had by not word but what "
         "some we can out other were all there when up use your how said an each she which do their time if will way "
         "about many then them write would like so these her long make thing see him two has look more day could go "
         "come number sound people water first made place after back little only round year came show every good "
         "return while struct const static void int double float string print import class public if else for").split()
MARKS = [" ", " ", " ", " ", ", ", ". ", "  ", "\n", "'s ", "-", "/", " 42 ", " (", ") ", "; ", "\t", "\n\n", " 1999 ", "_", "="]
ENDS = [" ", "", "  ", "\n", ", ", ". ", "'s ", "1", "23 ", "\t", "\u00a0", "\r\n"]


def words_text():
    """The text on which the small tokenizers are trained."""
    r = random.Random(11)
    for _ in range(1500):
        yield "".join(words_line(r, 12))
    for line in FIXED:
        yield line.replace("\x00", "")


def words_line(r, most):
    out = []
    for _ in range(r.randint(3, most)):
        w = r.choice(WORDS)
        k = r.random()
        out.append((w.upper() if k < .1 else w.capitalize() if k < .25 else w) + r.choice(MARKS))
    return out


def of_block(r, block, n):
    out = []
    while len(out) < n:
        c = chr(r.randint(*block))
        if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
            out.append(c)
    return "".join(out)


def varied_lines():
    """At least 1,200 lines as bytes; the last 200 are broken UTF-8."""
    r = random.Random(7)
    lines = [s.encode() for s in FIXED]
    for block in BLOCKS:
        for _ in range(22):
            lines.append("".join(of_block(r, block if r.random() < .8 else r.choice(BLOCKS), r.randint(1, 7)) + r.choice(ENDS)
                                 for _ in range(r.randint(1, 6))).encode())
    lines += ["".join(words_line(r, 16)).encode() for _ in range(260)]
    whole = list(lines)
    while len(lines) < len(whole) + 200:
        b = bytearray(r.choice(whole))
        for _ in range(r.randint(1, 5)):
            i, k = r.randint(0, len(b)), r.random()
            if k < .4:
                b[i:i] = bytes([r.randint(0x80, 0xBF)])
            elif k < .6:
                b[i:i] = bytes([r.choice([0xC3, 0xE2, 0xF0, 0xC0, 0xED, 0xF5, 0xFE, 0xFF])])
            elif b:
                del b[min(i, len(b) - 1)]
        try:
            b.decode()
        except UnicodeDecodeError:
            lines.append(bytes(b))
    return lines
