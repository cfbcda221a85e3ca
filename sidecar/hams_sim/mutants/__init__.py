"""Protocol bugs that the simulation must catch: each leaves out one rule of protocol.md. `catalogue` has them
all, `hunt` looks for a history that catches each."""
