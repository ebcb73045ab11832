"""Tests of the promises of cleanfeed.feed."""
