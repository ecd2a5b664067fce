"""What bench/gpu has measured, as a table on the terminal and as the page docs/results/gpu.md: each measure beside its
target. A target is a ratio to a peer's value of the same run, or a value."""

SENSES = {"least": lambda x, target: x >= target, "most": lambda x, target: x <= target}


def ratio(m):
    """How many times as good as the peer; None without one."""
    if not m.get("peer_value") or not m.get("value"):
        return None
    fast = m["value"] / m["peer_value"]
    return fast if m["unit"] in ("tokens/s",) else 1 / fast


def judged(m):
    """The number that the target is about: the ratio where there is a peer's name, else the value."""
    return ratio(m) if "peer" in m else m.get("value")


def met(m):
    """True, False, or None: there is no target, or nothing to hold beside it."""
    x, target = judged(m), m.get("target")
    return None if x is None or target is None else SENSES[m.get("sense", "least")](x, target)


def number(x):
    if x is None:
        return "-"
    if x == 0 or 1e-3 <= abs(x) < 1e5:
        return f"{x:.4g}"
    return f"{x:,.0f}" if abs(x) >= 1e5 else f"{x:.2e}"


def memory(n):
    return "-" if n is None else f"{n / 2**20:,.0f} MiB"


COLUMNS = ("measure", "value", "spread", "memory", "peer", "its value", "its memory", "ratio", "target", "met")


def row(name, m):
    words = [f"{number(m['value'])} {m.get('unit', '')}".strip()] if "value" in m else []
    value = ": ".join(words + ([m["why"]] if m.get("why") else [])) or "-"
    spread = f"{100 * m['spread']:.1f}%" if m.get("spread") is not None else "-"
    target = "-" if m.get("target") is None else f"at {m.get('sense', 'least')} {number(m['target'])}"
    verdict = {True: "yes", False: "NO", None: "-"}[met(m)]
    return (name, value, spread, memory(m.get("bytes")), m.get("peer", "-"),
            number(m.get("peer_value")) if m.get("peer_value") else m.get("peer_why", "-"),
            memory(m.get("peer_bytes")), number(ratio(m)), target, verdict)


def rows(part):
    return [row(name, m) for name, m in part.get("measures", {}).items()]


def state(name, part):
    text = f"{name}: {part['status']}"
    if part.get("why"):
        text += f", {part['why']}"
    return text + (f" ({part['seconds']:.0f} s)" if "seconds" in part else "")


def heat(part):
    """Clock and temperature around the part."""
    notes = [part.get(k) for k in ("begin", "end") if isinstance(part.get(k), dict) and part[k]]
    return "; ".join(f"{n.get('sm_mhz', '?')} MHz, {n.get('celsius', '?')} C" for n in notes)


def table(data):
    out = []
    for name, part in data["parts"].items():
        out.append(state(name, part))
        lines = rows(part)
        if not lines:
            continue
        widths = [max(len(x[i]) for x in lines + [COLUMNS]) for i in range(len(COLUMNS))]
        used = [i for i in range(len(COLUMNS)) if i < 2 or any(x[i] != "-" for x in lines)]
        for x in [COLUMNS] + lines:
            out.append("  " + "  ".join(x[i].ljust(widths[i]) for i in used).rstrip())
    return "\n".join(out)


def machine_line(data):
    m = data.get("machine", {})
    gpu = m.get("gpu", {})
    words = [gpu.get("name"), f"driver {gpu['driver']}" if gpu.get("driver") else None,
             f"{m['cores']} cores, {m['cpu']}" if m.get("cpu") else None,
             f"PyTorch {m['torch']['torch']}, cuDNN {m['torch'].get('cudnn')}" if m.get("torch") else None]
    return "; ".join(x for x in words if x)


def markdown(data):
    m = data.get("machine", {})
    backend = m.get("backend", "cuda")
    out = ["# On a GPU", "",
           f"Written by `bench/gpu --markdown` from what `{' '.join(data.get('command', ['bench/gpu']))}` found on "
           f"{data.get('date', 'an unknown day')}: {machine_line(data) or 'an unknown machine'}; commit "
           f"{m.get('commit', 'unknown')}.", ""]
    if backend != "cuda":
        out += [f"**A rehearsal on backend {backend}, on no GPU: none of these numbers says anything about one.**", ""]
    out += ["Values are medians; the spread is the range of the middle half over the median. A ratio is how many times as "
            "fast as the peer winnow is, in turns in one run, or how many times less memory it takes.", ""]
    for name, part in data["parts"].items():
        out += [f"## {name[:1].upper()}{name[1:]}", "", state(name, part) + "."]
        if heat(part):
            out += ["", f"Clock and temperature before and after: {heat(part)}."]
        lines = rows(part)
        if lines:
            used = [i for i in range(len(COLUMNS)) if i < 2 or any(x[i] != "-" for x in lines)]
            out += ["", "| " + " | ".join(COLUMNS[i] for i in used) + " |", "|" + "---|" * len(used)]
            out += ["| " + " | ".join(x[i].replace("|", "\\|") for i in used) + " |" for x in lines]
        out.append("")
    return "\n".join(out)
