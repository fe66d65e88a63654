"""Encoders: from features to a shorter sequence of vectors."""
