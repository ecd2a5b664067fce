"use strict";
(() => {
const $ = id => document.getElementById(id);
const log = $("log"), input = $("input"), tip = $("tip");
const messages = []; // {role, content, pin}: what has been said, and whether it must stay
let info = null, key = "", chat = 0;
let running = null; // the AbortController of the answer that is being written
try { key = sessionStorage.getItem("winnow-key") || ""; } catch { /* kept in this page alone */ }

// What the model has read, as the stream's events tell it.
const fresh = () => ({layers: 0, heads: 1, tokens: [], elements: [], seen: 0, held: [], sums: [], owners: [], turns: [], kept: [], dropped: 0, budgets: null, policy: ""});
let read = fresh(), at = -1;

const element = (name, of, text) => {
  const e = document.createElement(name);
  if (of) e.className = of;
  if (text !== undefined) e.textContent = text;
  return e;
};
const count = n => n.toLocaleString("en");
const size = b => b >= 1e9 ? (b / 1e9).toFixed(2) + " GB" : b >= 1e6 ? (b / 1e6).toFixed(1) + " MB" : (b / 1e3).toFixed(b < 1e5 ? 1 : 0) + " KB";

// ---- asking the server ----

function complain(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

async function ask(path, body, signal) {
  const headers = {"Content-Type": "application/json"};
  if (key) headers.Authorization = "Bearer " + key;
  let answer;
  try {
    answer = await fetch(path, {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store"});
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Error("The server does not answer.");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) askKey();
  let why = "";
  try { why = (await answer.json()).error.message; } catch { /* not the server's own words */ }
  throw new Error(answer.status === 401 ? (key ? "The server does not know this key." : "This server asks for a key.") : why || "The server says " + answer.status + ".");
}

function askKey() {
  $("keys").hidden = false;
  $("key").focus();
}

async function* events(answer) {
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  for (let rest = "", begin = performance.now();;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += decoder.decode(value, {stream: true});
    if (performance.now() - begin > 20) { // a fast model must not keep the page from its buttons
      await new Promise(go => setTimeout(go));
      begin = performance.now();
    }
    for (let cut; (cut = rest.indexOf("\n\n")) >= 0; rest = rest.slice(cut + 2)) {
      const line = rest.slice(0, cut);
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
    }
  }
}

// ---- settings ----

async function load() {
  try {
    info = await (await ask("info")).json();
    $("keys").hidden = true;
    complain("");
  } catch (e) {
    complain(e.message);
    return;
  }
  document.title = info.model + " · winnow";
  $("model").textContent = info.model + " · " + info.layers + " layers · context " + count(info.context);
  const names = info.policies.map(p => p.name);
  $("policy").replaceChildren(...names.map(name => {
    const option = element("option", "", name);
    option.value = name;
    return option;
  }));
  $("policy").value = names.includes(info.policy) ? info.policy : names[0] || "";
  if (info.budgets) {
    const all = new Set(info.budgets);
    $("budgets").placeholder = "the server's: " + (all.size === 1 ? info.budgets[0] : Math.min(...all) + " to " + Math.max(...all));
  }
  $("max").value = Math.min(+$("max").value, Math.max(1, info.context >> 1));
  if (info.temperature !== null) $("temperature").value = info.temperature; // the model's own
  $("template").closest("label").hidden = !info.chat;
  $("shade").replaceChildren(...[-1, ...Array(info.layers).keys()].map(l => {
    const option = element("option", "", l < 0 ? "all layers" : "layer " + l);
    option.value = l;
    return option;
  }));
  choosePolicy();
  allow();
  noteBudget();
}

function choosePolicy() {
  const policy = info.policies.find(p => p.name === $("policy").value);
  $("summary").textContent = policy ? policy.summary : "";
  $("sinks-row").hidden = !policy || !policy.options.includes("sinks");
}

// Without a budget, the page's or the server's, there is nothing to choose.
function allow() {
  $("policy").disabled = $("sinks").disabled = !info.budgets && !$("budgets").value.trim();
}

const number = id => $(id).value.trim() === "" ? undefined : +$(id).value;

function request(text) {
  const winnow = {trace: true}, policy = $("policy").value, sinks = $("sinks-row").hidden ? undefined : number("sinks");
  let budget = $("budgets").value.trim();
  // The server's budgets under another policy are named: it takes none without them.
  if (!budget && info.budgets && (policy !== info.policy || sinks !== undefined)) budget = info.budgets.join(",");
  if (budget) {
    winnow.budgets = /^[0-9]+$/.test(budget) ? +budget : budget;
    winnow.policy = policy;
    if (sinks !== undefined) winnow.sinks = sinks;
  }
  const body = {stream: true, stream_options: {include_usage: true}, temperature: number("temperature"), max_tokens: number("max"), seed: number("seed"), winnow};
  if (info.chat) body.messages = messages;
  else body.prompt = messages.map(m => m.content).join("");
  return body;
}

// ---- the conversation ----

const WHO = {user: "You", assistant: "Model"};

// turn: its number among the messages, for how much of it is kept, and its pin.
function place(role, turn) {
  const item = element("li", "msg " + (role === "user" ? "user" : "model")), text = element("div", "text");
  const head = element("h3", "", role === "user" ? WHO.user : info.chat ? WHO.assistant : "The model goes on"), held = element("span", "held");
  held.append(element("i"), element("span"));
  held.hidden = true;
  head.append(held);
  if (info.chat && turn !== undefined) head.append(pin(turn));
  read.turns[turn] = held;
  item.append(head, text);
  text.dir = "auto";
  log.append(item);
  return text;
}

function pin(turn) {
  const button = element("button", "pin"), show = () => {
    const is = !!messages[turn]?.pin;
    button.textContent = is ? "Pinned" : "Pin";
    button.title = is ? "From the next message on nothing of this turn is dropped" : "Keep this turn whole, whatever the policy";
    button.setAttribute("aria-pressed", is);
  };
  button.type = "button";
  button.addEventListener("click", () => {
    if (!messages[turn]) return; // it is being written
    messages[turn].pin = !messages[turn].pin;
    show();
  });
  show();
  return button;
}

// How much is kept of each turn that has lost something.
function tellTurns() {
  const tokens = [], kept = [];
  for (let i = 0; i < read.seen; i++) {
    const turn = read.owners[i];
    if (turn < 0) continue;
    tokens[turn] = (tokens[turn] || 0) + 1;
    kept[turn] = (kept[turn] || 0) + read.sums[i] / (read.layers * read.heads);
  }
  read.turns.forEach((held, turn) => {
    const share = kept[turn] / tokens[turn];
    held.hidden = !(share < 1);
    if (held.hidden) return;
    const some = kept[turn] > 0 && kept[turn] < 1 ? "under 1" : count(Math.round(kept[turn]));
    held.firstChild.style.setProperty("--w", 100 * share + "%");
    held.lastChild.textContent = kept[turn] ? some + " of " + count(tokens[turn]) + " kept" : "forgotten";
    held.title = kept[turn] ? "On average a layer keeps " + kept[turn].toFixed(1) + " of the " + count(tokens[turn]) + " tokens of this turn" :
      "No layer holds any of the " + count(tokens[turn]) + " tokens of this turn";
  });
}

const follows = () => $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < 80;
const follow = () => { $("scroll").scrollTop = $("scroll").scrollHeight; };

function add(text, to, turn) {
  const template = turn < 0;
  const span = element("span", "t", template ? text.replace(/\n/g, "↵") : text);
  span.dataset.i = read.tokens.length;
  read.tokens.push(text);
  read.elements.push(span);
  read.sums.push(0);
  read.owners.push(turn);
  to.append(span);
}

// Where the messages stand in the prompt, from the last one back: what a template puts before them can have the same words, and
// after them there is little. A message ends at a special token, if the template has any, and is not the name of a role alone,
// as between those of a heading. The prompt's texts, and which are special tokens: [begin, end] of each message, or null.
const ROLES = ["system", "user", "assistant", "model", "tool", "ipython", "developer"];
function find(prompt, special) {
  const marks = new Set();
  let whole = "";
  prompt.forEach((text, i) => {
    if (special.has(i)) marks.add(whole.length);
    whole += special.has(i) ? "\0".repeat(text.length) : text;
  });
  let to = whole.length;
  const ends = (begin, end) => {
    if (!info.chat) return end === to;
    if (!marks.size) return false;
    const next = whole.indexOf("\0", end);
    if (ROLES.includes(whole.slice(whole.lastIndexOf("\0", begin) + 1, next < 0 ? whole.length : next))) return false;
    while (end < to && /\s/.test(whole[end])) end++;
    return marks.has(end);
  };
  const last = (content, fits) => {
    for (let begin = to - content.length; content && begin >= 0; begin--) {
      begin = whole.lastIndexOf(content, begin);
      if (begin < 0 || fits(begin, begin + content.length)) return begin;
    }
    return -1;
  };
  const ranges = [];
  for (const m of [...messages].reverse()) {
    let found = null;
    for (const [content, fits] of [[m.content, ends], [m.content.trim(), ends], [m.content, () => true], [m.content.trim(), () => true]]) {
      const begin = found ? -1 : last(content, fits);
      if (begin >= 0) found = [begin, begin + content.length];
    }
    if (found) to = found[0];
    ranges.unshift(found);
  }
  return ranges;
}

// The prompt as the model reads it: messages are found in it again, the rest is the template's.
function draw(w) {
  read = {...fresh(), layers: w.layers, heads: w.heads, budgets: w.budgets, policy: w.policy, held: Array.from({length: w.layers}, () => []), kept: Array(w.layers).fill(0)};
  at = -1;
  tip.hidden = true;
  const special = new Set(w.special), ranges = find(w.prompt, special);
  log.replaceChildren();
  const plain = until => { for (; next < until; next++) place(messages[next].role, next).textContent = messages[next].content; };
  let next = 0, owner = -2, to = null, offset = 0;
  w.prompt.forEach((text, i) => {
    const end = offset + text.length;
    let mine = special.has(i) ? -1 : ranges.findIndex(r => r && offset < r[1] && (end > r[0] || (end === offset && offset >= r[0])));
    if (mine >= 0 && mine < owner) mine = owner;
    if (mine !== owner || !to) {
      if (mine >= 0) {
        plain(mine);
        next = mine + 1;
        to = place(messages[mine].role, mine);
      } else {
        to = element("li", "tpl");
        to.dir = "auto";
        log.append(to);
      }
      owner = mine;
    }
    add(text, to, mine);
    offset = end;
  });
  plain(messages.length);
  read.answer = place("assistant", messages.length);
  read.answer.classList.add("wait");
  follow();
}

const part = i => {
  const l = +$("shade").value;
  return l < 0 ? read.sums[i] / (read.layers * read.heads) : read.held[l][i] / read.heads;
};
function paint(i) {
  const f = i < read.seen ? part(i) : -1;
  read.elements[i].className = "t" + (f < 0 ? "" : " k" + (f === 0 ? 0 : f === 1 ? 8 : Math.min(7, Math.max(1, Math.round(8 * f))))) + (i === at ? " at" : "");
}

function hold(l, i, heads) {
  const before = read.held[l][i];
  read.held[l][i] = heads;
  read.sums[i] += heads - before;
  if (before > 0 && heads === 0) read.kept[l]--, read.dropped++;
}

// Steps are drawn together, so rarely that drawing takes a quarter of the time at most, and not too many at a time.
const STEPS = 1000;
let steps = [], due = 0, pause = 30;
function step(w) {
  if (w.tokens.length) {
    read.last = performance.now();
    read.first ??= read.last;
    read.drawn = (read.drawn || 0) + w.tokens.length;
  }
  steps.push(w);
  due ||= setTimeout(() => flush(), pause);
}

function flush(all) {
  clearTimeout(due);
  due = 0;
  if (!steps.length) return;
  const begin = performance.now(), stick = follows(), touched = new Set();
  for (const w of steps.splice(0, all ? steps.length : STEPS)) take(w, touched);
  touched.forEach(paint);
  if (touched.has(at)) tell();
  meter(read.bytes, read.full, read.dropped, read.kept);
  tellTurns();
  if (stick) follow();
  pause = Math.max(30, 3 * (performance.now() - begin));
  if (steps.length) due = setTimeout(() => flush(), pause);
}

function take(w, touched) {
  for (const text of w.tokens) add(text, read.answer, read.turns.length - 1);
  for (let i = read.seen; i < w.seen; i++) {
    touched.add(i);
    read.sums[i] = read.layers * read.heads;
    for (let l = 0; l < read.layers; l++) read.held[l][i] = read.heads, read.kept[l]++;
  }
  read.seen = w.seen;
  w.dropped?.forEach((list, l) => list.forEach(i => { touched.add(i); hold(l, i, 0); }));
  w.thinned?.forEach((list, l) => list.forEach(([i, heads]) => { touched.add(i); hold(l, i, heads); }));
  read.bytes = w.held_bytes;
  read.full = w.full_cache_bytes;
}

// ---- the meter ----

function meter(bytes, full, dropped, kept) {
  const write = (id, text, value) => { $(id).textContent = text; $(id).dataset.value = value; };
  write("cache", size(bytes), bytes);
  write("full", size(full), full);
  write("evicted", count(dropped), dropped);
  $("fill").style.width = (full ? Math.min(100, 100 * bytes / full) : 0) + "%";
  const speed = read.drawn > 1 ? 1000 * (read.drawn - 1) / (read.last - read.first) : 0;
  if (speed) write("speed", speed < 10 ? speed.toFixed(1) : speed.toFixed(0), speed);
  const most = Math.max(1, read.tokens.length);
  while ($("layers").children.length < kept.length) $("layers").append(element("i"));
  kept.forEach((n, l) => {
    $("layers").children[l].style.setProperty("--h", 100 * n / most + "%");
    $("layers").children[l].title = "layer " + l + ": " + count(n);
  });
  const low = Math.min(...kept), high = Math.max(...kept);
  $("layers").setAttribute("aria-label", "tokens kept by layer: " + kept.join(", "));
  $("kept").textContent = (low === high ? "Every layer keeps " + count(low) : "Layers keep " + count(low) + " to " + count(high)) + " of " + count(most) + " tokens.";
  noteBudget();
}

function noteBudget() {
  const b = read.layers ? read.budgets : $("budgets").value.trim() ? [] : info && info.budgets;
  const n = count(read.tokens.length);
  if (!b && !read.layers) $("note").textContent = "No budget is set: nothing will be dropped. Set one under “What is kept”.";
  else if (!b && !read.dropped) $("note").textContent = "No budget is set: nothing is dropped, every layer keeps all " + n + " tokens.";
  else if (!b) $("note").textContent = "No budget is set: layers drop what their window no longer reaches.";
  else if (!read.layers) $("note").textContent = "";
  else {
    const low = Math.min(...b), high = Math.max(...b);
    $("note").textContent = (low === high ? "A layer keeps at most " + count(low) + " tokens" : "Layers keep at most " + count(low) + " to " + count(high) + " tokens") +
      ", chosen by " + read.policy + (read.dropped ? "." : ": nothing has been dropped yet.");
  }
}

function finish(usage) {
  const w = usage.winnow;
  flush(true);
  meter(w.cache_bytes, w.full_cache_bytes, w.evicted, w.tokens_kept);
}

// ---- a token ----

const runs = list => {
  const out = [];
  for (let i = 0, j; i < list.length; i = j) {
    for (j = i + 1; j < list.length && list[j] === list[j - 1] + 1;) j++;
    out.push(j - i > 1 ? list[i] + "–" + list[j - 1] : "" + list[i]);
  }
  return out.join(", ");
};

function tell() {
  if (at < 0 || !read.elements[at]) return;
  const layers = read.held.map((h, l) => h[at] > 0 ? l : -1).filter(l => l >= 0), cells = element("div", "cells");
  const known = at < read.seen;
  tip.replaceChildren(element("b", "", JSON.stringify(read.tokens[at])), element("span", "", "token " + count(at) + (!known ? ": not in a cache yet, the model has just written it" :
    layers.length === read.layers ? ": kept by all " + read.layers + " layers" : !layers.length ? ": dropped by all " + read.layers + " layers" :
    ": kept by " + layers.length + " of " + read.layers + " layers (" + runs(layers) + ")")));
  if (known && read.heads > 1 && read.held.some(h => h[at] > 0 && h[at] < read.heads))
    tip.append(element("span", "", count(read.sums[at]) + " of " + count(read.layers * read.heads) + " key-value heads"));
  for (const h of known ? read.held : []) cells.append(element("i", h[at] === read.heads ? "on" : h[at] ? "part" : ""));
  tip.append(cells);
  tip.hidden = false;
  const box = read.elements[at].getClientRects()[0] || read.elements[at].getBoundingClientRect(), mine = tip.getBoundingClientRect();
  const seen = $("scroll").getBoundingClientRect();
  tip.hidden = box.bottom < seen.top || box.top > seen.bottom;
  tip.style.left = Math.max(8, Math.min(innerWidth - mine.width - 8, box.left)) + "px";
  tip.style.top = (box.bottom + 8 + mine.height < innerHeight ? box.bottom + 8 : Math.max(8, box.top - mine.height - 8)) + "px";
}

function choose(i) {
  const before = at;
  at = i;
  if (before >= 0 && read.elements[before]) paint(before);
  if (i < 0) tip.hidden = true;
  else paint(i), tell();
}

const tokenOf = e => e.target.classList?.contains("t") && log.contains(e.target) ? +e.target.dataset.i : -1;
log.addEventListener("pointerover", e => { if (e.pointerType === "mouse" && tokenOf(e) >= 0) choose(tokenOf(e)); });
log.addEventListener("pointerleave", e => { if (e.pointerType === "mouse") choose(-1); });
document.addEventListener("click", e => { if (!getSelection().toString()) choose(tokenOf(e)); });
$("scroll").addEventListener("scroll", () => { if (at >= 0) tell(); });
log.addEventListener("keydown", e => {
  const n = read.elements.length, to = {ArrowRight: at + 1, ArrowLeft: at < 0 ? n - 1 : at - 1, Home: 0, End: n - 1}[e.key];
  if (e.key === "Escape") choose(-1);
  if (to === undefined || !n || e.altKey || e.ctrlKey || e.metaKey) return;
  e.preventDefault();
  const i = Math.max(0, Math.min(n - 1, to));
  read.elements[i].scrollIntoView({block: "nearest"});
  choose(i);
});
log.addEventListener("blur", () => choose(-1));

// ---- writing ----

function working(is) {
  $("stop").hidden = !is;
  $("send").hidden = is;
  $("send").disabled = is;
  log.setAttribute("aria-busy", is);
}

async function say(text) {
  const before = messages.map(m => m.content).join("");
  const content = info.chat || !before || /\s$/.test(before) ? text : "\n" + text;
  let answer = "", begun = false;
  const mine = chat;
  messages.push({role: "user", content});
  const pending = place("user", messages.length - 1).parentNode;
  pending.lastChild.textContent = text;
  $("empty").hidden = true;
  complain("");
  $("said").textContent = "The model reads.";
  follow();
  running = new AbortController();
  working(true);
  try {
    for await (const event of events(await ask(info.chat ? "v1/chat/completions" : "v1/completions", request(), running.signal))) {
      if (mine !== chat) break;
      if (event.error) throw new Error(event.error.message);
      if (event.winnow?.prompt) begun = true, draw(event.winnow);
      else if (event.winnow) step(event.winnow);
      const choice = event.choices[0];
      answer += choice?.delta?.content ?? choice?.text ?? "";
      if (event.usage) finish(event.usage);
    }
  } catch (e) {
    if (e.name !== "AbortError" && mine === chat) complain(e.message);
  }
  running = null;
  working(false);
  if (mine !== chat) return;
  flush(true);
  if (begun) {
    messages.push({role: "assistant", content: answer});
    read.answer.classList.remove("wait");
    if (!read.drawn) read.answer.append(element("span", "hint", "(nothing)"));
    $("said").textContent = "The model: " + answer;
  } else { // nothing has been answered: the message goes back to where it was written
    messages.pop();
    pending.remove();
    if (!input.value) input.value = text;
    $("empty").hidden = messages.length > 0;
    $("said").textContent = "";
  }
  grow();
  if ($("keys").hidden) input.focus();
}

function grow() {
  input.style.height = "auto";
  input.style.height = input.scrollHeight + 2 + "px";
}

$("ask").addEventListener("submit", e => {
  e.preventDefault();
  const text = input.value;
  if (running || !text.trim()) return;
  if (!info) return void load();
  if (!$("settings").reportValidity()) return;
  openSide(false);
  input.value = "";
  grow();
  say(text);
});
input.addEventListener("input", grow);
input.addEventListener("keydown", e => {
  if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
  e.preventDefault();
  $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  running?.abort();
  chat++;
  messages.length = 0;
  steps = [];
  read = fresh();
  choose(-1);
  log.replaceChildren();
  $("empty").hidden = false;
  $("layers").replaceChildren();
  $("kept").textContent = "Nothing has been read yet.";
  for (const id of ["cache", "full"]) $(id).textContent = "0 MB";
  $("evicted").textContent = "0";
  $("speed").textContent = "–";
  $("fill").style.width = "0";
  complain("");
  noteBudget();
  input.focus();
});
const openSide = is => { // on small screens it lies over the conversation
  $("side").classList.toggle("open", is);
  $("more").setAttribute("aria-expanded", is);
  $("more").textContent = is ? "Close" : "Settings";
};
$("more").addEventListener("click", () => openSide(!$("side").classList.contains("open")));
$("settings").addEventListener("submit", e => e.preventDefault());
$("policy").addEventListener("change", choosePolicy);
$("budgets").addEventListener("input", () => { if (info) allow(), noteBudget(); });
$("template").addEventListener("change", () => log.classList.toggle("plain", !$("template").checked));
$("shade").addEventListener("change", () => { for (let i = 0; i < read.seen; i++) paint(i); });
$("keys").addEventListener("submit", e => {
  e.preventDefault();
  key = $("key").value.trim();
  try { sessionStorage.setItem("winnow-key", key); } catch { /* kept in this page alone */ }
  load().then(() => { if (info) input.focus(); });
});
load().finally(() => { document.documentElement.dataset.ready = "true"; });
})();
