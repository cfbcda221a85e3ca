"""Measurements behind `hams bench NAME`: each module has `main(arguments) -> int`, writes JSON and, where
there is something to see, a plot."""
