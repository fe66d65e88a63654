"""ARPA files of n-gram models."""
