"""The model families, one flat folder each."""

# Importing Transformers registers these families, which imports their modules: it must be complete before any of them
# starts to load, or it would find them half-loaded.
import transformers  # noqa: F401
