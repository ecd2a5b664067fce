"""What bench/gpu has found, in one JSON file that is replaced as a whole after every measure; and commands under a
limit of time, whose processes end together."""
import json
import os
import signal
import subprocess
import tempfile
import threading
import time


class Failed(Exception):
    """A part's one line."""


class Skipped(Exception):
    """Why a part, or a measure, has nothing to do here."""


class Store:
    def __init__(self, path, resume):
        self.path = path
        self.data = {"parts": {}}
        self.lock = threading.Lock()  # programs that run side by side add their measures
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise Failed(f"{path}: the folder {folder} is not there")
        if resume and os.path.exists(path):
            try:
                with open(path) as f:
                    self.data = json.load(f)
            except ValueError as e:
                raise Failed(f"{path}: no JSON: {e}") from None
            if not isinstance(self.data, dict) or not isinstance(self.data.get("parts"), dict):
                raise Failed(f"{path}: holds no parts of bench/gpu")

    def save(self):
        folder = os.path.dirname(os.path.abspath(self.path))
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".gpu-", suffix=".json", delete=False) as f:
            json.dump(self.data, f, indent=1)
            f.write("\n")
            f.flush()
            os.fsync(f.fileno())
        os.chmod(f.name, 0o644)
        os.replace(f.name, self.path)

    def done(self, part):
        return self.data["parts"].get(part, {}).get("status") in ("ok", "skipped")

    def begin(self, part, note):
        old = self.data["parts"].get(part, {})
        self.data["parts"][part] = {"status": "running", "begin": note, "measures": old.get("measures", {})}
        self.save()

    def measures(self, part):
        return self.data["parts"][part]["measures"]

    def add(self, part, name, measure):
        with self.lock:
            self.measures(part)[name] = measure
            self.save()

    def end(self, part, status, why, seconds, note):
        p = self.data["parts"][part]
        p.update(status=status, seconds=round(seconds, 1), end=note)
        p.pop("why", None)
        if why:
            p["why"] = why
        self.save()


class Box:
    """So many seconds, for a part or for everything."""
    def __init__(self, seconds, outer=None):
        self.end = time.monotonic() + seconds
        if outer:
            self.end = min(self.end, outer.end)

    def left(self):
        return max(0.0, self.end - time.monotonic())

    def need(self, what):
        if self.left() <= 0:
            raise Failed(f"out of time before {what}")


def first_line(text):
    """Of what a program says the line that tells most: an error, else the last."""
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    for x in lines:
        if "error" in x.lower() or x.startswith("not ok"):
            return x[:300]
    return lines[-1][:300] if lines else "it said nothing"


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def command(arguments, box, limit=600.0, env=None, cwd=None, keep_errors=True):
    """Runs it; its exit code, output and seconds. Out of time: its whole group ends, and that is a failure."""
    box.need(os.path.basename(arguments[0]))
    begin = time.monotonic()
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT if keep_errors else subprocess.DEVNULL, text=True, errors="replace",
                               env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True)
    seconds = min(limit, box.left())
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end_group(process)
        raise Failed(f"{os.path.basename(arguments[0])}: not done after {seconds:.0f} s") from None
    except BaseException:
        end_group(process)
        raise
    return process.returncode, out, time.monotonic() - begin


class Peer:
    """A program that answers a line of JSON with a line of JSON: winnow's measures and PyTorch's take turns so, each in
    one process that stays."""
    def __init__(self, arguments, env=None):
        self.name = os.path.basename(arguments[-1] if arguments[0].startswith("python") else arguments[0])
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, env={**os.environ, **(env or {})}, start_new_session=True)

    def ask(self, question, box, limit=120.0):
        import select
        box.need(self.name)
        seconds = min(limit, box.left())
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.name} ended: {self.said()}") from None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        if not ready:
            end_group(self.process)
            raise Failed(f"{self.name}: no answer after {seconds:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise Failed(f"{self.name} ended: {self.said()}")
        return json.loads(line)

    def said(self):
        self.errors.seek(0)
        return first_line(self.errors.read())

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        end_group(self.process)
        self.process.stdout.close()
        self.errors.close()
