"""The `hf-video` command. One file a command; heavy imports happen inside functions, so that help is instant."""
