"""Tympan: train, decode and inspect end-to-end speech recognisers."""

__version__ = "0.1.0"
