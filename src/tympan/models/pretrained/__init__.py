"""Speech encoders that somebody else trained, through the package `transformers` (extra `hf`)."""
