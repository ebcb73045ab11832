"""A finished build goes in; the batches of a training run come out, in an order that is a pure function."""
