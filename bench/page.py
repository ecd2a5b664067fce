"""--page FILE for commands whose tables are part of a page, between a line `begin` and a line `end`."""
import os
import sys


class Page:
    """The page, which is checked before anything is measured. path None: no page."""

    def __init__(self, path, begin, end):
        self.path, self.begin, self.end = path, begin + "\n", end + "\n"
        if path:
            self.parts()

    def parts(self):
        """The text before and after the tables. Read again at the end, since the page may have changed meanwhile."""
        try:
            with open(self.path, encoding="utf-8") as f:
                text = f.read()
        except (OSError, UnicodeError) as e:
            sys.exit(f"--page {self.path}: {getattr(e, 'strerror', None) or 'no UTF-8'}")
        before, begin, rest = text.partition(self.begin)
        _, end, behind = rest.partition(self.end)
        if not begin or not end or self.begin in rest:
            sys.exit(f"--page {self.path}: expected one line {self.begin.strip()}, and after it {self.end.strip()}")
        return before + begin, end + behind

    def put(self, text):
        """Replaces the tables. Does nothing without a page."""
        if not self.path:
            return
        before, behind = self.parts()
        with open(self.path + ".part", "w", encoding="utf-8") as f:
            f.write(before + text + behind)
        os.replace(self.path + ".part", self.path)
