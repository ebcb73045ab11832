"""Inputs and a pipeline go in; a finished, verifiable output folder comes out, whatever happens on the way."""
