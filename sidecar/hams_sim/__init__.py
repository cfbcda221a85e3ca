"""The deterministic simulator, the mutants it must catch and the history checker: one seed decides
everything."""
