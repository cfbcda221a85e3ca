"""Handwritten digits, learnt while they are answered."""
