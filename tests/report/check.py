#!/usr/bin/env python3
"""Compares the pages that tests/report/run has written, in a headless Chromium, with the files that they show.

    check.py --find: is there a Chromium?
    check.py FOLDER COMPARISON
    check.py --live URL RUN PID: the page of an active run, which is interrupted at the end
"""
import csv
import json
import math
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import browser  # noqa: E402
from browser import check  # noqa: E402


def near(a, b, tolerance=1e-5):
    return abs(a - b) <= tolerance * max(1, abs(b))


def rows(path):
    with open(path, newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


# Counts the pixels of a canvas that differ from its first one.
INK = """(s => { const c = document.querySelector(s); if (!c || !c.width) return -1;
  const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
  for (let i = 4; i < d.length; i += 4) n += d[i] !== d[0] || d[i+1] !== d[1] || d[i+2] !== d[2] || d[i+3] !== d[3]; return n })"""
TABLE = """(id => { const d = document.querySelector('#' + id + ' details.values'); d.open = true;
  return new Promise(r => setTimeout(() => r([...d.querySelectorAll('tbody tr')].map(t => [...t.cells].map(c => c.textContent))), 200)) })"""
STATE = """(n => { const p = document.querySelectorAll('#text .pane')[n], all = [...p.querySelectorAll('.text .t')];
  const list = c => all.filter(t => t.classList.contains(c)).map(t => +t.dataset.i);
  return {at: list('at'), later: list('later').length, masked: list('masked'), gone: list('gone'), say: p.querySelector('.say').textContent,
    light: all.map(t => t.style.backgroundColor), cache: [...p.querySelectorAll('.cache .n')].map(e => e.textContent),
    top: [...p.querySelectorAll('.top tbody tr')].map(t => [...t.cells].map(c => c.textContent))} })"""


def charts(page, folder, comparison):
    ids = page.eval("[...document.querySelectorAll('section.figure')].map(e => e.id)")
    want = ["loss", "validation", "speed", "gradient", "runs", "text", "matrices", "last-row", "memory-0", "search-0", "budgets-0", "meaningful-0", "fits-0", "meaningful-heads-0", "similarity", "entropy", "sinks", "survival-0", "survival-1", "policies-1", "agreement-1"]
    check("every figure is there", all(i in ids for i in want), ids)
    for i in ids:
        about = page.eval("[...document.querySelectorAll('#%s > p.about, #%s > details.how code')].map(r => r.textContent)" % (i, i))
        if len(about) < 2 or len(about[0]) < 10 or "winnow report" not in about[1]:
            check("figure %s says what it shows and how it is made" % i, False, about)
    check("figures say what they show and how they are made", True)
    for i in page.eval("Object.keys(winnow.charts)"):
        ink = page.eval(INK + "('#%s canvas')" % i)
        check("chart %s is drawn" % i, ink > 300, ink)

    log = [json.loads(line) for line in open(folder + "/selective/log.jsonl")]
    table = page.eval(TABLE + "('loss')")
    mine = [r for r in table if r[0] == "selective"]
    check("the loss curve has the log's values",
          len(mine) == len(log) and all(near(float(r[1]), p["tokens"]) and near(float(r[3]), p["step"]) and near(float(r[4]), p["loss"])
                                        for r, p in zip(mine, log)), mine[:2])
    val = [(p["tokens"], p["val_loss"]) for p in log if "val_loss" in p]
    drawn = page.eval("winnow.charts.loss.data.datasets.find(d => d.label === 'selective, validation').data.map(p => [p.x, p.y])")
    check("validation is drawn where it was measured", len(val) == len(drawn) and all(near(a[0], b[0]) and near(a[1], b[1]) for a, b in zip(val, drawn)), drawn)
    for figure, field in (("accuracy", "val_accuracy"), ("learning-rate", "lr")):
        want_points = [(p["tokens"], p[field]) for p in log if field in p]
        drawn = page.eval("winnow.charts['%s'].data.datasets.find(d => d.label === 'selective').data.map(p => [p.x, p.y])" % figure)
        check("%s is the log's" % figure, len(drawn) == len(want_points) > 1 and all(near(a[0], b[0]) and near(a[1], b[1]) for a, b in zip(drawn, want_points)), drawn[:3])
    small = page.eval("[...document.querySelectorAll('section.figure.small')].map(e => [e.id, Math.round(e.getBoundingClientRect().top)])")
    check("training curves stand in one row, small", len(small) > 4 and small[0][0] == "loss" and len({top for _, top in small}) == 1, small)
    check("its legend hides a line in every chart", page.eval("""(() => { const b = document.querySelector('.legend.all button'), name = b.textContent,
        shown = () => Object.entries(winnow.charts).filter(([id]) => document.getElementById(id).matches('.small')).map(([, c]) =>
          c.data.datasets.some((d, i) => d.label === name && c.isDatasetVisible(i)));
        const before = shown().filter(Boolean).length; b.click(); const during = shown().filter(Boolean).length; document.querySelector('.legend.all button').click();
        return before > 4 && during === 0 && shown().filter(Boolean).length === before })()"""))
    page.eval("document.querySelector('#loss button.enlarge').click()")
    check("one is enlarged on demand", page.eval("document.querySelector('#loss').getBoundingClientRect().width") > 800)
    check("the text comes first, and says what it shows",
          ids[0] == "text" and "reads most from" in page.eval("document.querySelector('#text p.says').textContent"), ids[:3])
    check("words are explained", page.eval("document.querySelectorAll('dl.words dt').length") >= 10)
    titles = page.eval("Object.values(winnow.charts).map(c => ['x', 'y'].map(a => [c.options.scales[a].title.text, c.options.scales[a].type]))")
    check("every axis has a name, a logarithmic one says so",
          all(len(t) > 1 and ("(logarithmic)" in t) == (kind == "logarithmic") for both in titles for t, kind in both), titles)
    page.eval("(e => { e.value = '2'; e.dispatchEvent(new Event('change')) })(document.querySelector('#loss .axis'))")
    x = page.eval("winnow.charts.loss.data.datasets.find(d => d.label === 'selective').data.map(p => p.x)")
    check("another axis: steps", x == [p["step"] for p in log], x[:4])
    page.eval("document.querySelector('#loss .xlog').click()")
    check("a logarithmic axis", page.eval("winnow.charts.loss.options.scales.x.type") == "logarithmic")
    page.eval("document.querySelector('#loss canvas').focus()")
    page.key("Home")
    page.key("ArrowRight")
    say = page.eval("document.querySelector('#loss .say').textContent")
    check("arrow keys read values out", "selective at 2: %s" % format(log[1]["loss"], ".6g") in say, say)

    legend = page.eval("[...document.querySelectorAll('#memory-0 .legend button')].map(b => b.textContent)")
    check("the legend names every line", legend == page.eval("winnow.charts['memory-0'].data.datasets.map(d => d.label)") and len(legend) > 6, legend)
    for shown in (False, True):
        page.eval("document.querySelectorAll('#memory-0 .legend button')[1].focus()")
        page.key("Enter")
        now = page.eval("[winnow.charts['memory-0'].isDatasetVisible(1), document.querySelectorAll('#memory-0 .legend button')[1].getAttribute('aria-pressed')]")
        check("a key %s a line" % ("shows" if shown else "hides"), now == [shown, str(shown).lower()], now)
    ends = page.eval("""Object.values(winnow.charts).map(c => [c.options.scales.y.max ?? null,
      Math.max(...c.data.datasets.flatMap(d => d.data.map(p => p.y)))]).filter((e, i) => e[0] !== null && Object.values(winnow.charts)[i].options.scales.y.type === "linear")""")
    check("an axis is cut off only where something lies beyond", [e for e in ends if e[1] < 0.9 * e[0]] == [], ends)
    results = json.load(open(comparison))["results"]
    table = page.eval(TABLE + "('memory-0')")
    ok = True
    for r in results:
        if r["policy"] == "none":
            continue
        found = [t for t in table if t[0] == "%s, %s" % (r["model"], r["policy"]) and near(float(t[1]), r["tokens_per_layer"])]
        ok &= len(found) == 1 and near(float(found[0][3]), math.exp(r["loss"]))
    check("quality against memory has the comparison's values", ok and len(results) > 4, table[:3])
    search = json.load(open(folder + "/searched/search.json"))
    last = search["points"][-1]
    drawn = page.eval("winnow.charts['budgets-0'].data.datasets.map(d => d.data.map(p => p.y))")
    check("budgets by layer are those of the search's end", last["tokens"] in drawn, drawn, last["tokens"])
    axes = page.eval("[...document.querySelectorAll('#search-0 .axis option')].map(o => o.textContent)")
    for axis, label in enumerate(axes):
        page.eval("(e => { e.value = '%d'; e.dispatchEvent(new Event('change')) })(document.querySelector('#search-0 .axis'))" % axis)
        log, kind, title, box = page.eval("(x => [winnow.data.figures.find(f => f.id === 'search-0').x[%d].log, x.type, x.title.text, "
                                          "document.querySelector('#search-0 .xlog').checked])(winnow.charts['search-0'].options.scales.x)" % axis)
        check("search over %s: its own scale" % label, (kind, title, box) == (("logarithmic", label + " (logarithmic)", True) if log else ("linear", label, False)),
              log, kind, title, box)
        lost = page.eval("""(c => c.data.datasets.flatMap((d, i) => c.getDatasetMeta(i).data.map((e, k) => [i, k, e.x, e.y])).filter(([i, k, x, y]) =>
          !c.getElementsAtEventForMode({x, y, native: true}, 'nearest', {axis: 'x', intersect: false}, true)
            .some(e => c.data.datasets[e.datasetIndex].data[e.index].x === c.data.datasets[i].data[k].x)))(winnow.charts['search-0'])""")
        most = page.eval("Math.max(...winnow.charts['search-0'].data.datasets.map(d => d.data.length))")
        check("search over %s: every step is drawn, and found under the pointer" % label, lost == [] and most == len(search["points"]), lost, most)
    check("a search has axes of both kinds", len(axes) > 1, axes)
    found = rows(folder + "/all-figures/search-0.csv")
    check("the search's CSV has every step", len(found) == 2 * len(search["points"]), len(found))


def saturated(page):
    """A page whose masks have three levels cannot show F above ln 6, and says so."""
    shown = page.eval("""(async () => { const v = winnow.data.texts.find(v => v.f), kept = [v.masked, v.levels], n = winnow.data.texts.indexOf(v), out = [];
      v.levels = 3;
      for (const t of [3, 2]) {
        v.masked = async () => new Uint8Array(v.T * (v.T + 1) / 2).fill(t);
        await winnow.set({token: 20 + t});
        out.push([...document.querySelectorAll('#text .pane')[n].querySelectorAll('.top tbody tr')].map(r => r.cells[3].textContent)[0]);
      }
      [v.masked, v.levels] = kept;
      await winnow.set({token: 20});
      return out })()""")
    check("F says where it may be more", shown == ["≥1.79", "1.10"], shown)


def long_run(page):
    """20,000 steps with loss 1, every 20th with loss 10."""
    drawn = "winnow.charts.loss.data.datasets[0].data"
    least, most = page.eval("(d => [Math.min(...d.map(p => p.y)), Math.max(...d.map(p => p.y))])(%s)" % drawn)
    check("a long line has its extremes", (least, most) == (1, 10), least, most)
    says = "2,000 of 20,000 points; all in loss.csv"
    page.eval(TABLE + "('loss')")
    told = page.eval("[...document.querySelectorAll('#loss .thinned')].map(e => e.textContent)")
    check("what the page lacks of it is said beside CSV and above the values", told == [says] * 2, told)
    page.eval("(e => { e.value = '0.99'; e.dispatchEvent(new Event('input')) })(document.querySelector('#loss .smooth'))")
    last = page.eval("(d => [d.length, d[d.length - 1].x, d[d.length - 1].y])(%s)" % drawn)
    check("smoothed it has its mean", last[0] == 1000 and 39900 < last[1] <= 40000 and near(last[2], 1.45), last)


DRAWN = "(id => winnow.charts[id].data.datasets.map(d => [d.label, d.data.map(p => [p.x, p.y])]))"
CELLS = "(id => [...document.querySelectorAll('#' + id + ' .scroll tr')].map(t => [...t.cells].map(c => c.textContent)))"


def answers(page):
    table = page.eval(TABLE + "('answers')")
    check("a curve has its standard errors", table == [["knorm", "0", "50", "28.8675"], ["knorm", "50", "50", "28.8675"]], table)
    table = page.eval(TABLE + "('needles-1')")
    check("a needle grid has a value for each cell", table == [["needles", n, d, s] for n in ("512", "1024") for d, s in (("15", "0"), ("95", "100"))],
          table)
    # How blue the pixel in the middle of a cell's left half is: the number stands in its middle.
    shade = """((x, y) => { const c = winnow.charts['needles-1'], r = c.currentDevicePixelRatio, s = c.scales;
      const p = c.ctx.getImageData(r * s.x.getPixelForValue(x * 0.8), r * s.y.getPixelForValue(y), 1, 1).data; return p[3] ? p[2] - p[0] : 0 })"""
    dark, light = page.eval(shade + "(512, 95)"), page.eval(shade + "(512, 15)")
    check("cells are as dark as their score, depths grow downwards", dark > 60 and abs(light) < 20 and page.eval(
        "winnow.charts['needles-1'].scales.y.getPixelForValue(95) > winnow.charts['needles-1'].scales.y.getPixelForValue(15)"), dark, light)
    check("a band is drawn around a curve", page.eval("""(() => { const c = winnow.charts['answers'], r = c.currentDevicePixelRatio;
      const p = c.ctx.getImageData(r * c.scales.x.getPixelForValue(27), r * c.scales.y.getPixelForValue(63), 1, 1).data;
      return p[3] > 20 && p[2] > p[0] })()"""))


def survival(page, number, folder, found, told):
    """found: the result of winnow analyze survival, which the page must show."""
    policies = found["policies"]
    drawn = dict(page.eval(DRAWN + "('survival-%d')" % number))
    check("survival %d: a line for each policy, with what analyze found" % number,
          list(drawn) == [p["policy"] for p in policies] and
          all([x for x, _ in drawn[p["policy"]]] == [2 ** k for k in range(len(p["alive"]))] and
              all(near(y, a) for (_, y), a in zip(drawn[p["policy"]], p["alive"])) for p in policies), drawn)
    whole, *table = page.eval(CELLS + "('policies-%d')" % number)[1:]
    check("survival %d: the first row is without a budget" % number,
          whole[0] == "no budget" and float(whole[3]) == 0 and float(whole[2]) > max(float(t[2]) for t in table), whole)
    check("survival %d: perplexity, lifetime and evictions" % number,
          len(table) == len(policies) and
          all(t[0] == p["policy"] and near(float(t[1]), p["perplexity"]) and abs(float(t[2]) - p["lifetime"]) < 0.01 and
              abs(float(t[3]) - 100 * p["evicted"]) < 0.06 for t, p in zip(table, policies)), table)
    head, *table = page.eval(CELLS + "('agreement-%d')" % number)
    check("survival %d: what policies agree on" % number,
          head[1:] == [p["policy"] for p in policies] and
          all(t[0] == p["policy"] and all(abs(float(x) - 100 * p["overlap"][h]) < 0.06 for x, h in zip(t[1:], head[1:]))
              for t, p in zip(table, policies)), head, table)
    about = page.eval("document.querySelector('#survival-%d p.about').textContent" % number)
    check("survival %d: its table tells the budgets" % number, told in about, about)
    lines = rows(folder + "/survival-%d.csv" % number)
    check("survival %d: its CSV has the same" % number,
          [(r["series"], round(float(r["share still held"]), 6)) for r in lines] ==
          [(p["policy"], round(a, 6)) for p in policies for a in p["alive"]], lines[:3])


def looks(page, folder):
    found = json.load(open(folder + "/attention.json"))
    for figure, field, lines in (("entropy", "entropy_bits", {"mean of the layer": "entropy_bits"}),
                                 ("sinks", "first_token", {"first token, mean of the layer": "first_token",
                                                           "first 4 tokens, mean of the layer": "first_tokens"})):
        drawn = dict(page.eval(DRAWN + "('%s')" % figure))
        name = "selective: " + ("heads" if figure == "entropy" else "first token, heads")
        want = [[l, h[field]] for l, layer in enumerate(found["by_layer"]) for h in layer["heads"]]
        check(figure + ": every head's value is what analyze found",
              len(drawn[name]) == 9 and all(a[0] == b[0] and near(a[1], b[1]) for a, b in zip(drawn[name], want)), drawn[name], want)
        for line, of in lines.items():
            have = drawn["selective: " + line]
            check("%s: %s" % (figure, line),
                  [x for x, _ in have] == [0, 1, 2] and all(near(y, layer[of]) for (_, y), layer in zip(have, found["by_layer"])), have)
        check(figure + ": the other model stands beside it", name.replace("selective", "standard") in drawn, list(drawn))
        page.eval("(e => { e.value = '1'; e.dispatchEvent(new Event('change')) })(document.querySelector('#%s .axis'))" % figure)
        over = dict(page.eval(DRAWN + "('%s')" % figure))[name]
        check(figure + ": over heads", over == [[h, drawn[name][3 * l + h][1]] for h in range(3) for l in range(3)], over)
        page.eval("(e => { e.value = '0'; e.dispatchEvent(new Event('change')) })(document.querySelector('#%s .axis'))" % figure)
        page.eval("document.querySelector('#%s canvas').focus()" % figure)
        page.key("Home")
        page.key("ArrowRight")
        say = page.eval("document.querySelector('#%s .say').textContent" % figure)
        check(figure + ": arrow keys read the value and its head", "%s at 0: %s (head 1)" % (name, format(want[1][1], ".6g")) in say, say)
        lines = [r for r in rows(folder + "/all-figures/%s.csv" % figure) if r["series"] == name]
        check(figure + ": its CSV names layer and head",
              [(r["layer"], r["head"]) for r in lines] == [(str(l), str(h)) for l in range(3) for h in range(3)], lines[:4])
    colour = "winnow.charts.entropy.data.datasets[0].borderColor"
    light = page.eval(colour)
    for _ in range(2):  # as the system says, light, dark
        page.eval("document.querySelector('#theme').click()")
    dark = page.eval(colour)
    page.eval("document.querySelector('#theme').click()")
    check("entropy: colours follow light and dark", light == "#0a5fc4" and dark == "#6cb6ff" and page.eval(colour) == light, light, dark)


BUDGETS = [[24, 12, 6], [12, 12, 12], [6, 24, 8]]


def ragged(page, folder):
    """Different budgets for key-value heads."""
    survival(page, 0, folder + "/ragged-figures", json.load(open(folder + "/ragged.json")), "6 to 24 tokens by key-value head")
    about = page.eval("document.querySelector('#survival-0 p.about').textContent")
    check("policies that have one budget a layer are named as left out", "streaming, window" in about and "selective" not in about, about)
    drawn = dict(page.eval(DRAWN + "('in-force-0')"))
    check("budgets are drawn head by head", drawn["key-value heads"] == [[l, k] for l in range(3) for k in BUDGETS[l]], drawn)
    check("and their means", all(near(y, sum(BUDGETS[l]) / 3) for l, y in drawn["mean of the layer"]), drawn)
    files = rows(folder + "/ragged-figures/text-0.csv")
    T = 1 + max(int(r["token"]) for r in files)
    gone = [[[int(r["head_%d_evicted_by_row" % h] or T) for r in files if int(r["layer"]) == l] for h in range(3)] for l in range(3)]
    held = lambda l, h, i: [j for j in range(i + 1) if gone[l][h][j] > i]
    check("every head keeps to its own budget, in every row",
          all(len(held(l, h, i)) == min(i + 1, BUDGETS[l][h]) for l in range(3) for h in range(3) for i in range(T)))
    check("no learned sinks where there are none", not any("learned" in n for n, _ in page.eval(DRAWN + "('sinks')")))
    last = [int(r["evicted_by_row"] or T) for r in files]
    check("a layer has lost what all of its heads have", last == [max(gone[l][h][j] for h in range(3)) for l in range(3) for j in range(T)])
    for i in (4, 9, 50, T - 1):
        page.eval("winnow.set({layer: 2, token: %d, head: -1})" % i)
        s = page.eval(STATE + "(0)")
        tell = lambda a: "3 \u00d7 %d" % a[0] if len(set(a)) == 1 else " + ".join(map(str, a))
        told = ["layer %d: %s of %s" % (l, tell([len(held(l, h, i)) for h in range(3)]), tell(BUDGETS[l])) for l in range(3)]
        check("row %d: the caches are the heads'" % i, s["cache"] == told, s["cache"], told)
        wide = page.eval("[...document.querySelectorAll('#text .cache li')].map(l => [...l.querySelectorAll('.bar')].map(b => [b.title, parseFloat(b.style.width), parseFloat(b.firstChild.style.width)]))")
        check("row %d: bars are as long as budgets and as full as caches" % i,
              all(abs(wide[l][h][1] - 100 * BUDGETS[l][h] / max(BUDGETS[l])) < 0.1 and
                  abs(wide[l][h][2] - 100 * len(held(l, h, i)) / BUDGETS[l][h]) < 0.1 and
                  wide[l][h][0] == "key-value head %d: %d of %d" % (h, len(held(l, h, i)), BUDGETS[l][h]) for l in range(3) for h in range(3)), wide)
        some = page.eval("[...document.querySelectorAll('#text .text .t.some')].map(t => +t.dataset.i)")
        holders = [sum(gone[2][h][j] > i for h in range(3)) for j in range(i + 1)]
        check("row %d: gaps where no head holds, underlined where some do" % i,
              s["gone"] == [j for j in range(i + 1) if holders[j] == 0] and some == [j for j in range(i + 1) if 0 < holders[j] < 3], s["gone"], some)
    for h in range(3):
        page.eval("(e => { e.value = '%d'; e.dispatchEvent(new Event('change')) })(document.querySelector('#text .head'))" % h)
        page.wait("winnow.state.head === %d" % h)
        page.eval("winnow.set({})")
        s = page.eval(STATE + "(0)")
        check("head %d of layer 2: what it has evicted is gone" % h,
              s["gone"] == [j for j in range(T) if gone[2][h][j] <= T - 1] and "%d of %d tokens held by key-value head %d" % (BUDGETS[2][h], T, h) in s["say"], s["say"])
    pixels = """(() => { const c = document.querySelector('#matrices canvas.matrix'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, n = {};
      for (let i = 0; i < d.length; i += 4) if (d[i+3] === 255) { const k = [d[i], d[i+1], d[i+2]].join(); n[k] = (n[k] || 0) + 1 } return n })()"""
    page.eval("(e => { e.value = 'kept'; e.dispatchEvent(new Event('change')) })(document.querySelector('#matrices .kind'))")
    page.eval("new Promise(r => setTimeout(r, 300))")
    n = page.eval(pixels)
    check("persisted elements of one head", n.get("21,128,61") == sum(len(held(2, 2, i)) for i in range(T)), n)
    page.eval("(e => { e.value = '-1'; e.dispatchEvent(new Event('change')) })(document.querySelector('#matrices .head'))")
    page.wait("winnow.state.head === -1")
    page.eval("new Promise(r => setTimeout(r, 300))")
    n, by = page.eval(pixels), [0] * 4
    for i in range(T):
        for j in range(i + 1):
            by[sum(gone[2][h][j] > i for h in range(3))] += 1
    check("persisted elements of all: a shade for each number of heads", sorted(n.values()) == sorted(k for k in by if k) and n.get("21,128,61") == by[3], n, by)
    page.eval("document.querySelector('#matrices canvas.matrix').focus()")
    page.key("ArrowDown")
    say = page.eval("document.querySelector('#matrices .say').textContent")
    check("arrow keys read how many heads hold it", "row 1, column 0: held by 3 of 3 key-value heads" in say, say)
    page.eval("winnow.set({token: 0, head: -1})")
    page.eval("document.querySelector('#text .speed').value = '20'")
    page.eval("document.querySelector('#text .play').click()")
    page.wait("winnow.state.token >= 14")
    page.eval("document.querySelector('#text .play').click()")
    page.eval("winnow.set({})")
    i = page.eval("winnow.state.token")
    s = page.eval(STATE + "(0)")
    check("playing fills each head's cache", s["cache"][0] == "layer 0: %d + %d + 6 of 24 + 12 + 6" % (min(i + 1, 24), min(i + 1, 12)), s["cache"], i)


def texts(page, folder):
    files = [rows(folder + "/all-figures/text-%d.csv" % n) for n in range(2)]
    T = 1 + max(int(r["token"]) for r in files[0])
    told = page.eval("winnow.data.texts.map(t => [t.name, t.T, t.layers])")
    check("two texts beside each other", told == [["standard", T, 3], ["selective", T, 3]], told)
    text = page.eval("document.querySelectorAll('#text .text')[1].textContent")
    check("the text stands in the page, markup and all", "</script><script>throw 1</script> & \"quotes\"" in text.replace("∅", ""), text[:90])
    for layer in range(3):
        page.eval("winnow.set({layer: %d, token: %d})" % (layer, T - 1))
        for n in range(2):
            s = page.eval(STATE + "(%d)" % n)
            mine = [r for r in files[n] if int(r["layer"]) == layer]
            gone = [int(r["token"]) for r in mine if r["evicted_by_row"]]
            check("layer %d of %s: evicted tokens are gone, the budget's are left" % (layer, told[n][0]), s["gone"] == gone and T - len(gone) == 24, s["gone"], gone)
            if n == 1:
                masked = [int(r["token"]) for r in mine if float(r["masked_in_last_row"]) > 0.501 and not r["evicted_by_row"]]
                check("layer %d: masked tokens are struck through" % layer, set(masked) <= set(s["masked"]) and len(s["masked"]) <= len(masked) + 2, s["masked"], masked)
            weights = [float(r[2]) for r in s["top"]]
            check("layer %d of %s: weights in order" % (layer, told[n][0]), weights == sorted(weights, reverse=True) and 0 < sum(weights) <= 1.05, weights)
    total = page.eval("""(async () => { const v = winnow.data.texts[1], t = await v.weights(1), i = v.T - 1; let s = 0;
      for (let j = 0; j <= i; j++) s += v.weight(t, i, j); return s })()""")
    check("a row's weights sum to one", abs(total - 1) < 0.02, total)

    one = page.eval("winnow.set({layer: 0, token: 40}).then(() => %s(1))" % STATE)
    check("the chosen token is marked and later ones are not yet read", one["at"] == [40] and one["later"] == T - 41, one["at"], one["later"])
    page.eval("document.querySelectorAll('#text .text')[1].focus()")
    page.key("ArrowRight")
    page.wait("winnow.state.token === 41")
    page.key("ArrowDown")
    page.wait("winnow.state.layer === 1")
    page.eval("winnow.set({})")
    two = page.eval(STATE + "(1)")
    check("arrow keys choose token and layer", two["at"] == [41] and two["light"] != one["light"] and "Layer 1, token 41" in two["say"], two["say"])
    page.eval("document.querySelectorAll('#text .text')[0].querySelector('[data-i=\"30\"]').click()")
    page.wait("winnow.state.token === 30")
    page.eval("(e => { e.value = '2'; e.dispatchEvent(new Event('change')) })(document.querySelector('#text .layer'))")
    page.wait("winnow.state.layer === 2")
    page.eval("winnow.set({})")
    three = page.eval(STATE + "(1)")
    check("a click and the list choose them too", three["at"] == [30] and "Layer 2, token 30" in three["say"] and three["light"] != two["light"], three["say"])

    page.eval("winnow.set({token: 0, layer: 0})")
    page.eval("(e => { e.value = '20' })(document.querySelector('#text .speed'))")
    seen = [page.eval(STATE + "(0)")["cache"][0]]
    page.eval("document.querySelector('#text .play').click()")
    page.wait("winnow.state.token >= 30")
    check("playing: the button pauses", page.eval("document.querySelector('#text .play').textContent") == "Pause")
    page.eval("document.querySelector('#text .play').click()")
    token = page.eval("winnow.state.token")
    page.eval("winnow.set({})")
    seen.append(page.eval(STATE + "(0)")["cache"][0])
    page.eval("new Promise(r => setTimeout(r, 300))")
    check("it stops where it is", page.eval("winnow.state.token") == token)
    check("the cache fills to the budget and stays", seen == ["layer 0: 1 of 24", "layer 0: 24 of 24"], seen)
    page.eval("winnow.set({token: 9})")
    check("half way it holds what was read", page.eval(STATE + "(0)")["cache"][2] == "layer 2: 10 of 24")


def matrices(page, folder):
    files = rows(folder + "/all-figures/text-1.csv")
    T = 1 + max(int(r["token"]) for r in files)
    pick = "(k => { const e = document.querySelector('#matrices .kind'); e.value = k; e.dispatchEvent(new Event('change')) })('%s')"
    page.eval("winnow.set({layer: 1})")
    page.eval(pick % "kept")
    page.eval("new Promise(r => setTimeout(r, 400))")
    want = 0
    for r in (r for r in files if int(r["layer"]) == 1):
        want += (int(r["evicted_by_row"]) if r["evicted_by_row"] else T) - int(r["token"])
    held = page.eval("""(c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
      for (let i = 0; i < d.length; i += 4) n += d[i+3] === 255 && d[i] === 21 && d[i+1] === 128; return n })(document.querySelectorAll('#matrices canvas.matrix')[1])""")
    check("what is held under budgets: as many cells as the file says", held == want, held, want)
    drawn = []
    for kind, layer in (("masked", 0), ("masked", 2), ("weight", 2)):
        page.eval(pick % kind)
        page.eval("document.querySelectorAll('#matrices .pane')[1].querySelector('[data-layer=\"%d\"]').click()" % layer)
        page.wait("winnow.state.layer === %d" % layer)
        page.eval("new Promise(r => setTimeout(r, 300))")
        drawn.append(page.eval("document.querySelectorAll('#matrices canvas.matrix')[1].toDataURL()"))
    check("layers and kinds give other matrices", len(set(drawn)) == 3)
    names = page.eval("[...document.querySelectorAll('#matrices .pane')].map(e => e.dataset.source)")
    check("texts and means over sequences", len(names) == 4 and "mean over 2 sequences" in names[3], names)
    last = page.eval("[...document.querySelectorAll('#last-row table.lastrow')[0].querySelectorAll('tbody tr')].map(t => +t.cells[1].textContent)")
    want = [sum(float(r["masked_in_last_row"]) > 0.5 for r in files if int(r["layer"]) == l) for l in range(3)]
    check("the last row counts what is masked", all(abs(a - b) <= 1 for a, b in zip(last, want)), last, want)


def live(url, run, pid):
    with browser.Browser() as b:
        page = b.open(url)
        count = "winnow.charts.loss.data.datasets[0].data.length"
        page.wait(count + " > 3")
        before = page.eval(count)
        page.wait("%s > %d" % (count, before + 3))
        check("a live page's curves grow", True)
        have = page.eval("winnow.charts.loss.data.datasets[0].data.slice(0, 5).map(p => p.y)")
        log = [json.loads(line) for line in open(run + "/log.jsonl") if line.endswith("\n")]
        check("they are the log's", all(near(h, p["loss"]) for h, p in zip(have, log)), have)
        page.wait("winnow.charts.loss.data.datasets[1].data.length > 0")
        val = page.eval("winnow.charts.loss.data.datasets[1].data[0].y")
        check("validation too", near(val, [p["val_loss"] for p in log if "val_loss" in p][0]), val)
        check("the step is told", "of 100000" in page.eval("document.querySelector('#live').textContent"))
        os.kill(pid, signal.SIGINT)
        page.wait("/finished|has ended/.test(document.querySelector('#live').textContent)")
        said = page.eval("document.querySelector('#live').textContent")
        check("its end is told", "finished" in said, said)
        check("a live page asks its own server alone", all(r.startswith((url, "data:", "blob:")) for r in page.requests) and page.problems == [],
              page.requests[:3], page.problems)
    return browser.failed


def main():
    if sys.argv[1] == "--live":
        return live(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    if sys.argv[1:] == ["--find"]:
        return 0 if browser.find() else 1
    folder, comparison = sys.argv[1], sys.argv[2]
    with browser.Browser() as b:
        url = "file://" + folder + "/all.html"
        page = b.open(url)
        charts(page, folder, os.path.join(folder, comparison))
        texts(page, folder)
        matrices(page, folder)
        survival(page, 1, folder + "/all-figures", json.load(open(folder + "/survival.json")), "24 tokens in every layer")
        looks(page, folder)
        saturated(page)
        light = page.eval("getComputedStyle(document.body).backgroundColor")
        page.eval("document.querySelector('#theme').click()")
        page.eval("document.querySelector('#theme').click()")
        dark = page.eval("getComputedStyle(document.body).backgroundColor")
        check("light and dark", light == "rgb(255, 255, 255)" and dark == "rgb(13, 17, 23)", light, dark)
        pdf = page.call("Page.printToPDF", {"printBackground": True})["data"]
        check("it prints", len(pdf) > 20000, len(pdf))
        unnamed = page.eval("""[...document.querySelectorAll('button, select, input, canvas[role=img], [tabindex]')].filter(e =>
          !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label'))).map(e => e.outerHTML.slice(0, 80))""")
        check("whatever takes keys has a name", unnamed == [], unnamed)
        check("no errors in the console", page.problems == [] and page.eval("winnow.errors") == [], page.problems, page.eval("winnow.errors"))
        check("nothing is fetched", [r for r in page.requests if not r.startswith(("data:", "blob:"))] == [url], page.requests)
        page.close()
        page = b.open(url, width=390, height=800)
        check("390 pixels are wide enough", page.eval("document.documentElement.scrollWidth") <= 390, page.eval("document.documentElement.scrollWidth"))
        page.close()
        page = b.open("file://" + folder + "/ragged.html")
        ragged(page, folder)
        problems = [p for p in page.problems if "willReadFrequently" not in p]  # the pixels that are read here
        check("no errors on the page of heads", problems == [] and page.eval("winnow.errors") == [], problems)
        page.close()
        page = b.open("file://" + folder + "/ragged.html", width=390, height=800)
        check("390 pixels are wide enough for it", page.eval("document.documentElement.scrollWidth") <= 390)
        page.close()
        page = b.open("file://" + folder + "/answers.html")
        answers(page)
        problems = [p for p in page.problems if "willReadFrequently" not in p]
        check("no errors on the page of answers", problems == [] and page.eval("winnow.errors") == [], problems)
        page.close()
        page = b.open("file://" + folder + "/long.html")
        long_run(page)
        check("no errors on the page of a long run", page.problems == [] and page.eval("winnow.errors") == [], page.problems)
        page.close()
        page = b.open("file://" + folder + "/short.html")
        page.eval("new Promise(r => setTimeout(r, 300))")
        heads = page.eval("[...document.querySelectorAll('#heads .heads canvas')].length")
        T = page.eval("winnow.data.texts[0].T")
        mean = page.eval("""(async () => { const v = winnow.data.texts[0], h = await winnow.tile(v.heads[1]), w = await v.weights(1), n = v.T * (v.T + 1) / 2; let most = 0;
          for (let k = 0; k < n; k++) { let m = 0; for (let a = 0; a < v.headCount; a++) m += (h[a * n + k] / 255) ** 2 / v.headCount;
            most = Math.max(most, Math.abs(m - (w[k] / v.levels) ** 2)) } return most })()""")
        check("a short text has a matrix for each head, whose mean is the layer's", heads == 3 and T < 64 and mean < 0.01, heads, T, mean)
        check("no errors there either", page.problems == [], page.problems)
    return browser.failed


if __name__ == "__main__":
    sys.exit(main())
