#!/usr/bin/env python3
"""Compares the budget search with reuse, plain and lazy, on the same checkpoint and data: times, and whether the
results are the same. The three alternate, advancing by a few steps at a time (--resume), so that other load on the
machine affects all of them alike. A step's time is the time since the step before it, which excludes start-up;
processor time is that of the whole process, start-up included. Needs only Python. Writes JSON."""
import argparse, json, os, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def piece(a, out, extra):
    command = a.run.split() + [a.winnow, "prune", "search", a.checkpoint, "--search", a.search, "--report", a.report,
                               "--search-rows", str(a.rows), "--report-rows", str(a.report_rows), "--step", str(a.step),
                               "--threads", str(a.threads), "--max-steps", str(a.piece), "--resume", "--quiet", "--json",
                               "--out", out] + a.target.split() + extra
    before = os.times()
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    after = os.times()
    result = json.loads(done.stdout)
    result["processor"] = after.children_user + after.children_system - before.children_user - before.children_system
    result["wall"] = time.monotonic() - start
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for name in ("checkpoint", "search", "report"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--winnow", default=os.path.join(ROOT, "build", "winnow"))
    p.add_argument("--work", required=True, help="a folder for the searches; one that is there already goes on")
    p.add_argument("--target", default="--tolerance 0.5%")
    p.add_argument("--rows", type=int, default=8)
    p.add_argument("--report-rows", type=int, default=8)
    p.add_argument("--step", type=int, default=8)
    p.add_argument("--piece", type=int, default=20, help="steps at a time")
    p.add_argument("--steps", type=int, default=10**9, help="at most so many in all")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--run", default="", help="put before the command, such as: chrt -r 20")
    p.add_argument("--pause", type=float, default=0, help="seconds between pieces")
    p.add_argument("--out")
    a = p.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    modes = {"reuse": [], "plain": ["--plain"], "lazy": ["--lazy"]}
    total = {m: {"processor_seconds": 0.0, "step_seconds": 0.0} for m in modes}
    open_modes = dict(modes)
    while open_modes:
        for mode in list(open_modes):
            out = os.path.join(a.work, mode)
            path = os.path.join(out, "search.json")
            before = len(json.load(open(path))["points"]) if os.path.exists(path) else 1
            result = piece(a, out, modes[mode])
            search = json.load(open(path))
            points = search["points"]
            t = total[mode]
            t["processor_seconds"] += result["processor"]
            # A piece's first step includes its start-up, so it counts as the mean of the others.
            gaps = [points[i]["seconds"] - points[i - 1]["seconds"] for i in range(before + 1, len(points))]
            new = len(points) - before
            t["step_seconds"] += sum(gaps) * new / len(gaps) if gaps else 0
            t["steps"] = len(points) - 1
            t["evaluations"] = sum(q["evaluations"] for q in points)
            t["end"], t["tokens"], t["saving"] = search["end"], points[-1]["tokens"], points[-1]["saving"]
            t["search_perplexity"] = points[-1]["search_perplexity"]
            t["report_perplexity"] = points[-1]["report_perplexity"]
            t["verified"] = search["plain_loss"] == points[-1]["search_loss"]
            t["points"] = [(q["layer"], q["tokens"], q["search_loss"], q["report_loss"]) for q in points]
            if search["end"] != "steps" or t["steps"] >= a.steps:
                del open_modes[mode]
            print("%-6s %4d steps  processor %7.1f s  steps %7.1f s  %s" %
                  (mode, t["steps"], t["processor_seconds"], t["step_seconds"], t["tokens"]), flush=True)
            time.sleep(a.pause)
    same = total["reuse"]["points"] == total["plain"]["points"]
    for t in total.values():
        del t["points"]
    result = {"same": same, "modes": total,
              "ratio_processor": total["plain"]["processor_seconds"] / total["reuse"]["processor_seconds"],
              "ratio_steps": total["plain"]["step_seconds"] / max(total["reuse"]["step_seconds"], 1e-9),
              "rows": a.rows, "step": a.step, "threads": a.threads, "target": a.target}
    print(json.dumps(result, indent=2))
    if a.out:
        json.dump(result, open(a.out, "w"), indent=2)


main()
