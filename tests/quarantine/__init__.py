"""Tests of the promises of cleanfeed.quarantine."""
