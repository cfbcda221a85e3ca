"""Three operators that do next to nothing: what a request costs besides its models."""
