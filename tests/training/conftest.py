from tests.testing.undrawn_reports import undrawn_reports

__all__ = ["undrawn_reports"]
