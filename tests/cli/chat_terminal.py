#!/usr/bin/env python3
"""winnow chat on a terminal of its own (a pty).   tests/cli/chat_terminal.py WINNOW MODEL TOKENS

TOKENS: the length of the long conversation. Writes TAP. Needs only Python; skips where the system has no pty. The model may
be untrained: its end tokens are never drawn, so answers end where the test wants.
"""
import fcntl, json, os, re, select, signal, struct, sys, tempfile, termios, time

WINNOW, MODEL, TOKENS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), int(sys.argv[3])
NAMES = ["ten pasted lines are one message", "ten pasted lines are one message, without line editing",
         "Ctrl-C ends an answer and not the chat", "Ctrl-C drops what was typed", "a message typed before is called back",
         "the history file is its owner's alone", "/regen writes another answer, /set holds",
         "the context shows what is gone struck through",
         f"a conversation of {TOKENS} tokens at 256 tokens a layer takes constant memory",
         "a conversation longer than its context forgets its oldest turns", "/quit leaves the terminal as it was"]
PASTE = "\n".join(f"line {i} of ten" for i in range(10))
ENDLESS = ["--budgets", "256", "--policy", "streaming", "--cache-positions"]
NO_END = [word for i in (0, 1, 2) for word in ("--logit-bias", f"{i}=-inf")]
failed = False


def tell(name, problem=None, log=b""):
    global failed
    NAMES.remove(name)
    print(("not ok - " if problem else "ok - ") + name)
    if problem:
        failed = True
        print("# " + problem)
        for line in log[-1500:].decode(errors="replace").splitlines():
            print("# | " + repr(line))
    sys.stdout.flush()


class Chat:
    def __init__(self, *options, term="xterm", state):
        self.log, self.at, self.term = b"", 0, term
        environment = dict(os.environ, TERM=term, XDG_STATE_HOME=state, LC_ALL="C.UTF-8", HOME=state)
        self.pid, self.fd = os.forkpty()
        if self.pid == 0:
            os.execve(WINNOW, [WINNOW, "chat", MODEL, "--template", "chatml", "--threads", "1", *NO_END, *options], environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.prompt()

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            more = os.read(self.fd, 65536)
        except OSError:  # the other end was closed
            more = b""
        self.log += more
        return bool(more)

    def expect(self, pattern, seconds=120):
        end = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.log[self.at:])
            if found:
                self.at += found.end()
                return found
            if time.monotonic() > end or not self.read(max(0.01, end - time.monotonic())):
                raise AssertionError(f"{pattern!r} did not come")

    def prompt(self):
        self.expect(rb"(^|\n)> " if self.term == "dumb" else rb"\033\[\?2004h> ")
        time.sleep(0.05)  # let the program set the terminal up after its prompt

    def send(self, text):
        os.write(self.fd, text if isinstance(text, bytes) else text.encode())

    def say(self, text):
        """Sends a message or a command. Returns everything up to the next prompt."""
        self.send(text + "\r")
        self.expect(rb"\n")
        begin = self.at
        self.prompt()
        return self.log[begin:self.at]

    def saved(self, name):
        self.say("/save " + name)
        with open(name) as f:
            return [(m["role"], m["content"]) for m in json.load(f)["messages"]]

    def memory(self):
        with open(f"/proc/{self.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) * 1024

    def close(self):
        """The exit code, or None if it had to be killed."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if self.pid is None:
                return None
            self.read(0.05)
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                os.close(self.fd)
                self.pid = None
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid = None
        return None

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.fd)
            self.pid = None


def check(name, body, *options, **more):
    chat = None
    try:
        chat = Chat(*options, **more)
        problem = body(chat)
    except (AssertionError, OSError, KeyError, ValueError) as error:
        problem = str(error) or repr(error)
    tell(name, problem, chat.log if chat else b"")
    if chat:
        chat.kill()


def counts(text):
    found = re.search(rb"\[(\d+) tokens, [0-9.]+ tok/s; kept (\d+) of (\d+), forgot (\d+)", text)
    return [int(x) for x in found.groups()] if found else None


def pasted(folder):
    def body(chat):
        chat.send("\033[200~" + PASTE.replace("\n", "\r" if chat.editing else "\n") + "\033[201~")
        answer = chat.say("")
        if not counts(answer):
            return "no counts after the answer"
        messages = [text for role, text in chat.saved(folder + "/pasted.json") if role == "user"]
        return None if messages == [PASTE] else f"messages are {messages!r}"
    return body


def interrupted(chat):
    chat.send("go on\r")
    chat.expect(rb"\n")
    time.sleep(0.5)
    chat.send(b"\x03\x03")
    chat.expect(rb"winnow: stopped")
    chat.prompt()
    chat.say("/set tokens 5")
    found = counts(chat.say("and now?"))
    return None if found and found[0] == 5 else f"the next answer: {found}"


def dropped(folder):
    def body(chat):
        chat.send("half a mess\x03")
        chat.prompt()
        chat.say("whole")
        messages = [text for role, text in chat.saved(folder + "/dropped.json") if role == "user"]
        return None if messages == ["whole"] else f"messages are {messages!r}"
    return body


def called_back(folder):
    def body(chat):
        chat.say("the first")
        chat.say("the second")
        chat.send("\033[A\033[A")
        chat.say("!")
        messages = [text for role, text in chat.saved(folder + "/back.json") if role == "user"]
        return None if messages == ["the first", "the second", "the first!"] else f"messages are {messages!r}"
    return body


def regenerated(folder):
    def body(chat):
        chat.say("/set temperature 2 tokens=8")
        chat.say("hello")
        chat.say("again")
        before = chat.saved(folder + "/regen.json")
        after_text = chat.say("/regen")
        after = chat.saved(folder + "/regen.json")
        if before[:-1] != after[:-1] or before[-1] == after[-1]:
            return f"before {before!r}, after {after!r}"
        if counts(after_text)[0] != 8:
            return f"{counts(after_text)} tokens, not 8"
        chat.say("/reset")
        chat.say("/load " + folder + "/regen.json")
        return None if chat.saved(folder + "/again.json") == after else "/load does not give back what /save wrote"
    return body


def struck(chat):
    chat.say("hello there")
    chat.say("/set budgets 8 policy streaming")
    chat.say("and now?")
    text = chat.say("/context")
    gone = re.findall(rb"\033\[9;2m(.*?)\033\[0m", text)
    if not gone:
        return "nothing is struck through"
    kept, total, forgot = counts(chat.log[chat.log.index(b"and now?"):])[1:]
    return None if forgot > 0 and kept + forgot == total else f"kept {kept} of {total}, forgot {forgot}"


def long_talk(chat):
    piece, total, memory, caches = max(200, TOKENS // 40), 0, None, set()
    chat.say(f"/set tokens {piece}")
    while total < TOKENS:
        found = counts(chat.say("go on"))
        if not found:
            return "an answer without counts"
        total = found[2]
        caches.add(re.search(rb"cache ([0-9.]+ .?B)", chat.say("/stats")).group(1))
        if memory is None and total >= TOKENS // 10:
            memory = chat.memory()
    grown = chat.memory() - memory
    if found[1] > 256 + 2 or len(caches) != 1:
        return f"{found[1]} tokens are kept, caches of {caches}"
    # The text itself stays in memory, with some bytes a token. Keys and values would take 1 KB a token. With fewer
    # tokens the allocator's (or a sanitizer's) noise would hide that.
    if TOKENS < 20000:
        return None
    print(f"# {grown} bytes more after {total} tokens")
    return None if grown < 60 * total + (256 << 10) else f"{grown} bytes more after {total} tokens"


def forgetful(chat):
    chat.say("/set tokens 60")
    for _ in range(12):
        found = counts(chat.say("tell me more"))
    if not found or found[3] < 300:
        return f"counts {found}"
    return None if b"are forgotten" in chat.log else "no line says so"


def quits(chat):
    chat.send("/quit\r")
    code = chat.close()
    marks = chat.log.count(b"\033[?2004h"), chat.log.count(b"\033[?2004l")
    return None if code == 0 and marks[0] == marks[1] else f"exit code {code}, marks of pastes {marks}"


def main():
    try:
        pid, fd = os.forkpty()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(fd)
    except OSError as error:
        for name in NAMES:
            print(f"ok - chat on a terminal: {name} # SKIP no pty: {error}")
        return
    folder = tempfile.mkdtemp(dir=".")
    folder = os.path.abspath(folder)
    state = folder + "/state"
    os.mkdir(state)
    names, few = list(NAMES), ["--tokens", "6", "--context", "2000"]
    probe = Chat(*few, state=state)
    edits = b"ats" in complete(probe)
    probe.kill()
    Chat.editing = edits
    check(names[0], pasted(folder), *few, state=state)
    Chat.editing = False
    check(names[1], pasted(folder), *few, term="dumb", state=state)
    check(names[2], interrupted, "--tokens", "1000000", *ENDLESS, state=state)
    check(names[3], dropped(folder), *few, state=state)
    if edits:
        check(names[4], called_back(folder), *few, state=state)
        path = state + "/winnow/chat_history"
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else None
        with open(path) as f:
            known = "line\\0400\\040of\\040ten" in f.read()
        tell(names[5], None if mode == 0o600 and known else f"mode {mode}, the pasted message is there: {known}")
    else:
        for name in names[4:6]:
            NAMES.remove(name)
            print(f"ok - {name} # SKIP built without libedit")
    check(names[6], regenerated(folder), *few, state=state)
    check(names[7], struck, *few, state=state)
    check(names[8], long_talk, *ENDLESS, state=state)
    check(names[9], forgetful, "--context", "200", state=state)
    check(names[10], quits, *few, state=state)
    sys.exit(1 if failed else 0)


def complete(chat):
    """What Tab turns /st into: /stats, if the program was built with line editing."""
    begin = chat.at
    chat.send("/st\t")
    time.sleep(0.3)
    chat.read(0.5)
    return chat.log[begin:]


main()
