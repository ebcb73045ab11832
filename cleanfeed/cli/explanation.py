"""What is known of one document goes in; the result for ``--json`` and its page for the terminal come out."""

from __future__ import annotations
