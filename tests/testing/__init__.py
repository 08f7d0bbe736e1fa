"""What test files share: data, tiny models, commands and processes."""
