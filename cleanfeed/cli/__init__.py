"""Commands go in; results on stdout, progress on stderr and an exit code come out."""
