"""Guesses of the word that a user types next."""
