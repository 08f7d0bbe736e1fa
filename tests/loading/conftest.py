"""A Hub on the loopback, and the fixtures of commands."""

from ..cli.conftest import fails  # noqa: F401
from ..hub_server.fixtures import hub  # noqa: F401
