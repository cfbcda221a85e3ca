"""Recorded histories: what a graph did, and what that proves about the invariants of the protocol.

`lines` is the format and its writer, which every process loads. `checker` judges a history in memory or in
files (`check`, `check_directory`) and gives a `report`; `command` is `hams history check`.
"""
