"""Generators of hostile input, each with a short form in the suite and a long one from the command line."""
