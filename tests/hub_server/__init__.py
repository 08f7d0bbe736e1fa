"""A Hugging Face Hub on loopback, for tests that push and load over HTTP with the real clients."""
