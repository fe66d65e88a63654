"""Decoders: from the encoder's output and the tokens so far to the next token."""
