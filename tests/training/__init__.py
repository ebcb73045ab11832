"""Tests of the promises of cleanfeed.training."""
