"""N-gram language models: counting, modified Kneser-Ney estimation, ARPA and binary files."""
