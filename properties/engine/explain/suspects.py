"""The suspects of a run: attentions with a known mistake, for the reading of a failure."""

from __future__ import annotations

import importlib

from ..core.target import first_line
from .reading import Suspect, suspect


def known_mistakes(missing: list[str] | None = None) -> list[Suspect]:
    """Those beside this package; none where they cannot be imported, and then why is added to ``missing``."""
    base = __package__.removesuffix("properties.engine.explain")  # "" in a clone, "attncheck." installed
    try:
        module = importlib.import_module(f"{base}impls.mutants")
        mutants, _ = module.load_all()
    except (ImportError, AttributeError) as error:  # no PyTorch, or one that lacks what they are written with
        if missing is not None:
            missing.append(first_line(error))
        return []
    return [suspect(f"mutants.{name}", m.mistake, m.contract, m.function, m.killed_by, module.forget) for name, m in mutants.items()]
