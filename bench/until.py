"""--until HH:MM for commands that may take days: they end between two pieces of work, and the same command continues
later."""
import datetime
import re
import sys


class Until:
    """The next time that a clock shows `clock`, maybe tomorrow. None: no end."""

    def __init__(self, clock):
        self.clock, self.end = clock, None
        if clock:
            if not re.fullmatch("([01][0-9]|2[0-3]):[0-5][0-9]", clock):
                sys.exit(f"--until: expected HH:MM, 00:00 to 23:59, found {clock}")
            now = datetime.datetime.now()
            self.end = now.replace(hour=int(clock[:2]), minute=int(clock[3:]), second=0, microsecond=0)
            self.end += datetime.timedelta(days=self.end <= now)

    def check(self):
        """Ends the program if the time has come."""
        if self.end and datetime.datetime.now() >= self.end:
            sys.exit(f"stopped at {self.clock}; the same command goes on")
