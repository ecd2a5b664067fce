"""Makes `lm_eval --model winnow` work without a change to lm-evaluation-harness, which has no entry points for models.

Imported at Python's start by winnow_lm_eval.pth, it only waits: when lm_eval.models is imported, the model is put into the
registry that this module fills, by name; winnow itself is imported when the model is asked for."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional, Sequence

TARGET = "winnow_lm_eval.model:WinnowLM"


def register() -> None:
    """Puts the model into lm_eval's registry; may be called again."""
    from lm_eval.api.registry import model_registry
    from lm_eval.models import MODEL_MAPPING

    if "winnow" not in MODEL_MAPPING:
        MODEL_MAPPING["winnow"] = TARGET
    if "winnow" not in model_registry:
        model_registry.register("winnow", target=TARGET)


class _Loader:
    """The module's own loader, and then register()."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        made: Optional[ModuleType] = self.own.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.own.exec_module(module)
        register()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


class _Finder:
    """Finds lm_eval.models in the usual way, but with another loader."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name != "lm_eval.models":
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
                    return spec
        return None


sys.meta_path.insert(0, _Finder())
