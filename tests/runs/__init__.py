"""Tests of the promises of cleanfeed.runs."""
