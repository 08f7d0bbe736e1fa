"""The app in a real browser: `make test-extras`."""
