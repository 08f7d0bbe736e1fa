"""Packs: videos in few large files, with an index."""
