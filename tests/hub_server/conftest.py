from .fixtures import hub  # noqa: F401
