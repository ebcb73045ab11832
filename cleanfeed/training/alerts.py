"""What happened goes in; whoever was named is told, and training goes on whatever comes of it."""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

from cleanfeed.arguments import check_list
from cleanfeed.errors import MisuseError, one_line

TIMEOUT = 10.0
"""Seconds a webhook is given."""
log = logging.getLogger("cleanfeed.training")

Alert = dict[str, Any]
Target = Callable[[Alert], object] | str


class Alerts:
    """Tells functions and webhooks.

    A function is called in place. A webhook is sent the alert as JSON by POST, from a thread of its own, so that a slow
    one holds up nothing; the process waits for it when it ends, 10 seconds at most. Failures are logged.

    Args:
        targets: Functions of one argument, addresses that start with http:// or https://, or several of these.
        run: Name of the run, part of each alert.
    """

    def __init__(self, targets: Target | Iterable[Target] | None, run: str) -> None:
        if targets is not None and not callable(targets):
            check = [targets] if isinstance(targets, str) else targets
            check_list("TrainingGuard", "on_alert", check, "functions and http(s) addresses")
        found = (
            [targets] if targets is None or isinstance(targets, str) or callable(targets) else list(targets)
        )
        self._targets: list[Target] = [target for target in found if target is not None]
        self._run = run
        for target in self._targets:
            if not callable(target) and not str(target).startswith(("http://", "https://")):
                raise MisuseError(
                    one_line(
                        "an alert has no address",
                        "on_alert",
                        repr(target),
                        "a function or an http(s) address",
                    )
                )

    def send(self, event: str, message: str, **about: Any) -> None:
        """Tell everyone.

        Args:
            event: What kind: ``incident``, ``rollback``, ``halted``, ``outcome``, ``checkpoint``, ``store``.
            message: A sentence for a person.
            about: Numbers: ``incident``, ``step``, ``rule``, ``action``, …
        """
        log.warning("%s", message)
        alert = {"event": event, "run": self._run, "message": message, **about}
        for target in self._targets:
            if isinstance(target, str):
                threading.Thread(target=_post, args=(target, alert), name="cleanfeed-alert").start()
                continue
            try:
                target(alert)
            except Exception as error:  # noqa: BLE001 - a user's function; its failure must not stop training
                log.warning("an alert failed: %s: %s", type(error).__name__, error)


def _post(address: str, alert: Alert) -> None:
    try:
        request = urllib.request.Request(
            address,
            data=json.dumps(alert, default=str).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            pass
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a webhook, training goes on
        log.warning("an alert was not delivered: %s: %s", type(error).__name__, error)
