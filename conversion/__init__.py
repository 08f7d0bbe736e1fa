"""Original checkpoints to `save_pretrained` folders: `python -m conversion.SOURCE CHECKPOINT OUTPUT_DIR`."""
