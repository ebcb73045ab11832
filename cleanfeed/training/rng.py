"""The random states of this process go out as plain values, and go in again; nothing is pickled."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """Return the states of Python, NumPy's global generator, torch and each CUDA device, as JSON values."""
    version, words, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state()
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [kind, np.asarray(key).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _hex(torch.get_rng_state()),
        "cuda": [],
    }
    if torch.cuda.is_available():
        state["cuda"] = [_hex(device) for device in torch.cuda.get_rng_state_all()]
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Put the states back; those of CUDA devices this process does not have are left out."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, key, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(key, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_bytes(state["torch"]))
    for device, saved in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_bytes(saved), device)


def _hex(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _bytes(state: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8)
