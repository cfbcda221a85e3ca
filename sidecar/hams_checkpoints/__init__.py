"""Checkpoints on disk: the format of the files, who writes one, and which of them is read.

Proxies write and read them; `hams up --restore` says what is there before a run begins from it.
"""
