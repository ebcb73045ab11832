"""A file is told to match a glob exactly where the glob finds it."""

import glob
import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cleanfeed.documents.patterns import split_pattern, would_match

NAMES = st.sampled_from(["a", "ab", ".a", "b"])
PARTS = st.sampled_from(["a", "*", "**", "?", "a*", "[ab]", ".*", "*b"])


@given(st.lists(NAMES, min_size=1, max_size=4), st.lists(PARTS, min_size=1, max_size=4))
def test_a_path_matches_where_glob_finds_it(path: list[str], pattern: list[str]):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, *path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        found = glob.glob(os.path.join(folder, *pattern), recursive=True)  # noqa: PTH118, PTH207
        # With a slash at its end a name is that of a folder, which glob does not always look up.
        assert would_match(pattern, path) == (place in {Path(name) for name in found if name[-1] != "/"})


def test_a_pattern_is_cut_before_its_first_wildcard():
    assert split_pattern("in/a.jsonl") is None
    assert split_pattern("in/x*/b.jsonl") == ("in/", ("x*", "b.jsonl"))
    assert split_pattern("*.jsonl") == ("", ("*.jsonl",))
    assert split_pattern("/[ab]/*") == ("/", ("[ab]", "*"))
    assert split_pattern("s3://bucket/raw/**") == ("s3://bucket/raw/", ("**",))
