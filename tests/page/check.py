#!/usr/bin/env python3
"""The chat page in a headless Chromium.   check.py PORT PORT PORT PORT: servers of a model with a chat template; of one
without, which writes for ever; of one with the API key "secret" and budgets (9 tokens, window); and of one whose template has a system message."""
import json
import os
import sys
import time
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "report"))
import browser  # noqa: E402
from browser import check  # noqa: E402

HOSTILE = "<img src=x onerror=alert(1)> & <b>bold</b>\n\tif (a < b) { }  " + "long" * 60 + " שלום עולם"


def ask(port, path, body=None, key=None):
    request = urllib.request.Request("http://127.0.0.1:%d%s" % (port, path), body and json.dumps(body).encode())
    if key:
        request.add_header("Authorization", "Bearer " + key)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def idle(port):
    end = time.monotonic() + 20
    while ask(port, "/slots")["running"] and time.monotonic() < end:
        time.sleep(0.02)
    return ask(port, "/slots")


def choose(page, **values):
    for name, value in values.items():
        page.eval("""(e => { e.value = %s; e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change')) })(document.getElementById('%s'))"""
                  % (json.dumps(str(value)), name))


def say(page, text, wait=True):
    page.eval("(e => { e.focus(); e.value = %s; e.dispatchEvent(new Event('input')) })(document.getElementById('input'))" % json.dumps(text))
    page.key("Enter")
    if wait:
        page.wait("document.getElementById('stop').hidden && document.getElementById('log').ariaBusy === 'false'", 60)


# Tokens with what their class means: k0 dropped everywhere .. k8 kept everywhere; "": not read yet.
TOKENS = """[...document.querySelectorAll('#log .t')].map(e => [e.textContent, (e.className.match(/k[0-8]/) || [''])[0], e.closest('li').className])"""
HELD = "[...document.querySelectorAll('.held')].map(e => e.hidden ? '' : e.textContent)"
METER = """Object.fromEntries(['cache', 'full', 'evicted'].map(i => [i, +document.getElementById(i).dataset.value]))"""


# The lowest WCAG contrast of any text on the page with its background, and where it is.
CONTRAST = """(() => {
  const parse = s => (s.match(/[0-9.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = c => [0, 1, 2].map(i => c[i] / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((a, v, i) => a + v * [.2126, .7152, .0722][i], 0);
  const under = e => { const c = parse(getComputedStyle(e).backgroundColor), a = c[3] ?? 1; if (a === 1 || !e.parentElement) return a ? c : [255, 255, 255];
    const b = under(e.parentElement); return [0, 1, 2].map(i => a * c[i] + (1 - a) * b[i]) };
  let worst = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || e.closest('.skip, .off, script, style, option, :disabled') || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(under(e)), c = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (c < worst[0]) worst = [c, e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 30)];
  }
  return worst })()"""


def sound(page, name):
    worst = page.eval(CONTRAST)
    check(name + ": contrast", worst[0] >= 4.5, worst)
    page.problems = [p for p in page.problems if "ERR_ABORTED" not in p]  # what was stopped; Chromium says it of some streams that were read to their end, too
    check(name + ": no errors, nothing from elsewhere, no sideways scrolling",
          not page.problems and not [r for r in page.requests if not r.startswith("http://127.0.0.1:")] and
          page.eval("document.documentElement.scrollWidth <= innerWidth && "
                    "document.getElementById('scroll').scrollWidth <= document.getElementById('scroll').clientWidth"),
          page.problems, page.requests)


def chat(port, scheme, width):
    """A conversation under a budget of 12 tokens, policy window, so that the tokens kept are known."""
    name = "%s, %d pixels" % (scheme, width)
    with browser.Browser(scheme) as b:
        page = b.open("http://127.0.0.1:%d/" % port, width=width, height=844)
        ground = page.eval("getComputedStyle(document.body).backgroundColor")
        check(name + ": its colours", (ground == "rgb(255, 255, 255)") == (scheme == "light"), ground)
        names = [p["name"] for p in ask(port, "/info")["policies"]]
        check(name + ": the server's policies", page.eval("[...document.getElementById('policy').options].map(o => o.value)") == names and
              "window" in names and "selective" not in names, names)
        fields = "['policy', 'sinks'].map(i => document.getElementById(i).disabled)"
        before = page.eval(fields)
        choose(page, policy="window", budgets=12, seed=5, max=40, temperature=0.5)
        check(name + ": a policy can be chosen where there is a budget", before == [True, True] and page.eval(fields) == [False, False], before, page.eval(fields))
        say(page, HOSTILE)
        tokens = page.eval(TOKENS)
        body = {"messages": [{"role": "user", "content": HOSTILE}], "seed": 5, "max_tokens": 40, "temperature": 0.5,
                "winnow": {"policy": "window", "budgets": 12}}
        answer = ask(port, "/v1/chat/completions", body)
        usage = answer["usage"]
        shown = "".join(t for t, _, where in tokens if where == "msg model")
        check(name + ": the answer is the server's", shown.startswith(answer["choices"][0]["message"]["content"]) or
              answer["choices"][0]["message"]["content"].startswith(shown), shown, answer["choices"])
        read = [k for _, k, _ in tokens if k]
        check(name + ": tokens are marked by what holds them", read[-12:] == ["k8"] * 12 and set(read[:-12]) == {"k0"} and len(read) > 60 and
              len(tokens) == usage["total_tokens"], read, usage)
        check(name + ": the template's tokens are there", tokens[0][2] == "tpl" and "<|im_end|>" in "".join(t[0] for t in tokens if t[2] == "tpl"), tokens[:3])
        meter, kept = page.eval(METER), usage["winnow"]
        check(name + ": the meter is usage.winnow", meter == {"cache": kept["cache_bytes"], "full": kept["full_cache_bytes"], "evicted": kept["evicted"]} and
              page.eval("document.getElementById('layers').ariaLabel") == "tokens kept by layer: " + ", ".join(map(str, kept["tokens_kept"])), meter, kept)
        check(name + ": texts stay texts", page.eval("document.querySelectorAll('#log img, #log b').length") == 0 and
              page.eval("document.querySelector('.user .text').textContent") == HOSTILE)
        page.eval("document.querySelectorAll('#log .t')[3].click()")
        gone = page.eval("document.getElementById('tip').textContent")
        page.eval("document.getElementById('log').focus()")
        page.key("End")
        page.key("ArrowLeft")
        held = page.eval("document.getElementById('tip').textContent")
        check(name + ": a token tells its layers", "dropped by all 3 layers" in gone and "kept by all 3 layers" in held and
              page.eval("document.querySelectorAll('#tip .cells .on').length") == 3, gone, held)
        page.eval("document.getElementById('input').focus()")
        held = page.eval(HELD)
        lost = page.eval("document.querySelectorAll('.held')[0].title")
        check(name + ": a turn that lost tokens tells how many", held[0] == "forgotten" and "No layer holds any of the" in lost and
              usage["winnow"]["messages"][0]["kept"] == 0, held, lost, usage)
        page.eval("document.querySelectorAll('.pin')[1].click()")
        pinned = page.eval("[...document.querySelectorAll('.pin')].map(e => e.ariaPressed + e.textContent)")
        check(name + ": a turn can be pinned", pinned == ["falsePin", "truePinned"], pinned)
        choose(page, budgets=len([1 for _, _, where in tokens if where == "msg model"]) + 30)
        # The second turn reads the first one's tokens.
        say(page, "and the well?")
        again = page.eval(TOKENS)
        check(name + ": the conversation goes on", [t for t in again if t[2] == "msg user"][-1][0].endswith("?") and len(again) > len(tokens) and
              page.eval("[...document.querySelectorAll('#log > .msg')].map(e => e.className)") == ["msg user", "msg model"] * 2, again[-60:])
        held = page.eval(HELD)
        check(name + ": the pinned turn stays whole", held[0] == "forgotten" and held[1] == "" and held[3] != "" and
              page.eval("document.querySelectorAll('#log > .msg')[1].querySelectorAll('.t:not(.k8)').length") == 0, held)
        if width < 600:
            page.eval("document.getElementById('more').click()")
            check(name + ": settings open over the conversation", page.eval("(e => e.top < 120 && e.height > 500)(document.getElementById('side').getBoundingClientRect())"))
            page.eval("document.getElementById('more').click()")
        sound(page, name)
        page.eval("document.getElementById('new').click()")
        choose(page, budgets="")
        say(page, "the water")
        check(name + ": without a budget nothing is dropped, which is said", {k for _, k, _ in page.eval(TOKENS)} <= {"k8", ""} and
              "nothing is dropped" in page.eval("document.getElementById('note').textContent"), page.eval("document.getElementById('note').textContent"))
        choose(page, max=100000)
        say(page, "too much")
        error = page.eval("document.getElementById('error').textContent")
        check(name + ": an error is told in a line, and the message comes back", "together more than the context" in error and
              page.eval("document.getElementById('input').value") == "too much", error)


def text(port):
    """A model without a template, which writes until it is stopped."""
    with browser.Browser("light") as b:
        page = b.open("http://127.0.0.1:%d/" % port, width=1280, height=800)
        choose(page, policy="streaming", budgets=10, sinks=2, max=20000, seed=1)
        say(page, "the water", wait=False)
        page.wait("document.querySelectorAll('#log .model .k8').length > 5", 60)
        writing = ask(port, "/slots")["running"]
        first = page.eval("document.querySelectorAll('#log .t').length")
        page.wait("document.querySelectorAll('#log .t').length > %d" % (first + 20), 60)
        page.eval("document.getElementById('stop').click()")
        page.wait("document.getElementById('stop').hidden", 20)
        slots = idle(port)
        check("stop: the slot is free at once", writing == 1 and slots["running"] == 0 and slots["cache_bytes"] == 0, writing, slots)
        kept = [k for _, k, _ in page.eval(TOKENS) if k]
        check("stop: what was written stays, sinks and the recent kept", kept[:2] == ["k8"] * 2 and kept[-8:] == ["k8"] * 8 and
              set(kept[2:-8]) == {"k0"} and not page.eval("document.getElementById('error').textContent"), kept[:12])
        choose(page, max=20)
        say(page, "from a hill")
        texts = page.eval("[...document.querySelectorAll('#log > .msg .text')].map(e => e.textContent)")
        check("a text goes on after its continuation", len(texts) == 4 and texts[0] == "the water" and texts[2].strip() == "from a hill" and len(texts[3]) > 5, texts)
        choose(page, max=400)
        say(page, "on and on", wait=False)
        page.wait("document.querySelectorAll('#log .msg:last-child .t').length > 1", 60)  # the server has begun
        page.eval("document.getElementById('new').click()")
        check("a new chat stops the old one", idle(port)["running"] == 0 and page.eval("document.querySelectorAll('#log li').length") == 0)
        sound(page, "a text")


def locked(port):
    with browser.Browser("dark") as b:
        page = b.open("http://127.0.0.1:%d/" % port, width=390, height=800)
        line = page.eval("[document.getElementById('error').textContent, document.getElementById('keys').hidden]")
        check("a key is asked for", line == ["This server asks for a key.", False], line)
        enter = "(e => { e.value = '%s'; document.getElementById('keys').requestSubmit() })(document.getElementById('key'))"
        page.eval(enter % "wrong")
        page.wait("document.getElementById('error').textContent.includes('does not know')", 20)
        check("a bad key is told in a line", page.eval("document.getElementById('error').getClientRects()[0].height") < 40)
        page.problems.clear()  # the browser's own messages about status 401
        page.eval(enter % "secret")
        page.wait("document.getElementById('keys').hidden", 20)
        choose(page, max=5, seed=2)
        say(page, "the water came from a deep well on the hill")
        kept = [k for _, k, _ in page.eval(TOKENS) if k]
        check("with the key, the server's own budgets", kept.count("k8") == 9 and "k0" in kept and
              "the server's: 9" == page.eval("document.getElementById('budgets').placeholder"), kept)
        page.eval("document.getElementById('new').click()")
        choose(page, policy="streaming", sinks=2)
        say(page, "the water came from a deep well on the hill")
        kept = [k for _, k, _ in page.eval(TOKENS) if k]
        check("another policy and sinks, under the server's budgets", kept[:2] == ["k8"] * 2 and kept[-7:] == ["k8"] * 7 and set(kept[2:-7]) == {"k0"} and
              "chosen by streaming" in page.eval("document.getElementById('note').textContent"), kept, page.eval("document.getElementById('note').textContent"))
        sound(page, "behind a key")


def named(port):
    """A message with words that the template also has, before or after it."""
    with browser.Browser("light") as b:
        page = b.open("http://127.0.0.1:%d/" % port, width=1280, height=800)
        choose(page, max=3, seed=2)
        for words in (["AI"], ["a", "assistant", "AI"], ["user"]):
            for text in words:
                say(page, text)
            shown = page.eval("[...document.querySelectorAll('#log > li')].map(e => [e.className, e.querySelector('.text') ? e.querySelector('.text').textContent : e.textContent])")
            mine, first = [t for where, t in shown if where == "msg user"], shown[0]
            marked = page.eval("[...document.querySelectorAll('#log .user .text')].every(e => e.querySelector('.t'))")
            check("messages are found where they stand: " + ", ".join(words), mine == words and marked and first[0] == "tpl" and
                  "helpful AI assistant named Well" in first[1] and first[1].endswith("user↵"), shown)
            page.eval("document.getElementById('new').click()")
        sound(page, "a system message")


ports = [int(p) for p in sys.argv[1:]]
chat(ports[0], "light", 1280)
chat(ports[0], "dark", 390)
text(ports[1])
locked(ports[2])
named(ports[3])
sys.exit(browser.failed)
