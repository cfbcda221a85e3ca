"""Models of the fault tests: never deterministic, so that an execution that leaks is seen."""
