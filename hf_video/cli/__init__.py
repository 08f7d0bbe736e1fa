"""The `hf-video` command. Each command has its own file. Slow imports are inside functions, so that help is fast."""
