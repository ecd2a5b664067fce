"""A headless Chromium, controlled over its DevTools pipe, with Python's standard library only.

    with Browser() as b:
        page = b.open("file:///tmp/report.html", width=1280, height=900)
        page.eval("document.title")

page.problems: console errors, exceptions and failed loads; page.requests: every URL requested.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


failed = 0  # whether a check failed


def check(name, ok, *detail):
    """Prints a TAP line, with details on failure."""
    global failed
    print(("ok - " if ok else "not ok - ") + name)
    if not ok:
        failed = 1
        for d in detail:
            print("#   %.2000s" % (d,))
    sys.stdout.flush()


def find():
    return next((path for path in map(shutil.which, (os.environ.get("CHROMIUM", ""),) + NAMES) if path), None)


class Browser:
    def __init__(self, scheme="light"):
        self.scheme = scheme

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="winnow-browser-")
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()

        def child():  # the child expects the pipe's ends at descriptors 3 and 4
            a, b = os.dup(to_read), os.dup(to_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
             "--force-color-profile=srgb", "--remote-debugging-pipe", "--user-data-dir=" + self.folder, "about:blank"],
            preexec_fn=child, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.buffer, self.answers, self.pages = 0, b"", {}, {}
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
        except Exception:
            self.process.kill()
        self.process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def pump(self, seconds):
        if not select.select([self.read_end], [], [], seconds)[0]:
            return
        data = os.read(self.read_end, 1 << 20)
        if not data:
            raise RuntimeError("Chromium has gone")
        self.buffer += data
        *messages, self.buffer = self.buffer.split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].event(message["method"], message["params"])

    def call(self, method, params=None, session=None, seconds=180):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        data, number = json.dumps(message).encode() + b"\0", self.number
        while data:
            data = data[os.write(self.write_end, data):]
        end = time.monotonic() + seconds
        while number not in self.answers:
            self.pump(0.2)
            if time.monotonic() > end:
                raise RuntimeError(method + ": no answer")
        answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(method + ": " + answer["error"]["message"])
        return answer["result"]

    def open(self, url, width=1280, height=900, ready="document.documentElement?.dataset.ready === 'true'", seconds=180):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self.pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(domain + ".enable")
        page.call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        page.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": self.scheme}]})
        page.call("Page.navigate", {"url": url})
        page.wait(ready, seconds)
        return page


class Page:
    def __init__(self, browser, session, target):
        self.browser, self.session, self.target = browser, session, target
        self.problems, self.requests = [], []

    def event(self, method, p):
        if method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.problems.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif method == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.problems.append("exception: " + d.get("exception", {}).get("description", d["text"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.problems.append("log: " + p["entry"]["text"] + " " + p["entry"].get("url", ""))
        elif method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif method == "Network.loadingFailed":
            self.problems.append("failed to load: " + p.get("errorText", ""))

    def call(self, method, params=None, seconds=180):
        return self.browser.call(method, params, self.session, seconds)

    def eval(self, expression, seconds=180):
        got = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True, "userGesture": True}, seconds)
        if "exceptionDetails" in got:
            d = got["exceptionDetails"]
            raise RuntimeError(expression[:200] + ": " + d.get("exception", {}).get("description", d["text"]))
        return got["result"].get("value")

    def wait(self, expression, seconds=120):
        end = time.monotonic() + seconds
        while not self.eval("!!(" + expression + ")"):
            if time.monotonic() > end:
                raise RuntimeError("not within %g s: %s; %s" % (seconds, expression, self.problems))
            self.browser.pump(0.1)

    def key(self, name):
        for kind in ("rawKeyDown", "keyUp"):
            if name == "Enter" and kind == "rawKeyDown":
                kind = "keyDown"  # with its character, which is what presses a button
            self.call("Input.dispatchKeyEvent", {"type": kind, **({"text": "\r"} if kind == "keyDown" else {}), "key": name, "code": name,
                                                 "windowsVirtualKeyCode": {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
                                                                           "Home": 36, "End": 35, "Tab": 9, "Enter": 13}[name]})

    def shot(self, path, selector=None):
        """The whole page, or one element with its contents."""
        if selector:
            box = self.eval("(()=>{const b=document.querySelector(%s).getBoundingClientRect();"
                            "return [b.x+scrollX,b.y+scrollY,b.width,b.height]})()" % json.dumps(selector))
        else:
            box = self.eval("[0,0,document.documentElement.scrollWidth,document.documentElement.scrollHeight]")
        x, y, w, h = box
        how = {"format": "webp", "quality": 80} if path.endswith(".webp") else {"format": "png"}
        data = self.call("Page.captureScreenshot", {**how, "captureBeyondViewport": True,
                                                    "clip": {"x": x, "y": y, "width": w, "height": h, "scale": 1}})["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.closeTarget", {"targetId": self.target})
