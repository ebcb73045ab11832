"""Incident files go in; a DuckDB store one can query, and the report for the engineer on call, come out."""
