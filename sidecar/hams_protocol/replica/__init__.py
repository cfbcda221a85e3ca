"""One replica set, whatever it replicates: the state of an operator in records, or the log of a shard in
entries (protocol.md, section 2; ADR 0031).

`followers` is the arithmetic of the set: who counts, how far all who count have come. `leader` sends, admits,
drops and replaces by it. `following` is a follower's side of the same. What a record is, and when one that a
leader has alone counts, say `stateful` and `frontend`.
"""
