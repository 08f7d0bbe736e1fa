"""The models in a browser: a page on which a video is dropped and looked at."""
