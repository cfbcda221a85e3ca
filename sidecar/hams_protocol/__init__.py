"""The protocol as a pure machine: events in, effects out; no clock, no randomness, no input or output of its
own."""
