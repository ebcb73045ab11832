"""Kept documents go in; samples in stages, shuffled and written as Parquet, come out."""
