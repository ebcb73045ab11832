"""Text goes in; numbers, and on request the places they come from, come out."""

from cleanfeed.kernel_cache import ensure_cache

ensure_cache()
