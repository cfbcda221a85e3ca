"""Scheduling by deadlines and execution-time distributions: which ready units of an operator run next,
together.

Pure: no clock, no input or output, no randomness but an explicit seed; standard library only. A policy sees
ready units and gives back a batch. It decides nothing about safety: `lawful.Lawful` asserts what a policy
may answer, whatever the policy.
"""
