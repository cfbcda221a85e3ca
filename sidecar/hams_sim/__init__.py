"""The deterministic simulator, and the mutants that it must catch: one seed decides everything."""
