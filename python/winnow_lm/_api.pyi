# _api.py is written from the C headers when the package is built (python/declare.py).
from typing import Any

ffi: Any
