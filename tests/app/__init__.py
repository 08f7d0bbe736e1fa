"""The app. The tests in a browser run with `make test-extras`."""
