"""Numbers go in; a verdict with every reason comes out."""
