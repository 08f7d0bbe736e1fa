"""A Hub on the loopback, and the fixtures of commands."""

from ..cli.conftest import digits, fails  # noqa: F401
from ..hub_server.fixtures import hub  # noqa: F401
