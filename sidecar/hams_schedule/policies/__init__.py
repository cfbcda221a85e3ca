"""The policies: `fifo`, `deadline` and `distribution` serve; the others exist to be measured against.

Import a policy from its module. Nothing imports `orloj` but benchmarks and tests (docs/adr/0035)."""
