"""Fast operators, each with several backends. No operator knows a model."""

# Importing Transformers registers the families, which import these operations: it must be complete before any of them
# starts to load, or a family would find it half-loaded, and take its plain scan.
import transformers  # noqa: F401
