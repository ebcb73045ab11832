"""Text files go in; a clean, ordered curriculum for pretraining a language model comes out."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
