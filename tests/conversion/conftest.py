"""What the tests of all sources share."""

import pytest


@pytest.fixture
def refused(tmp_path, capsys):
    """Runs the `main` of a source, which must end with exit code 2 and leave no file; returns the message."""

    def run(main, checkpoint, *options):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(SystemExit) as exit_info:
            main([str(checkpoint), str(tmp_path / "model"), *map(str, options)])
        assert exit_info.value.code == 2
        assert sorted(tmp_path.iterdir()) == before
        return capsys.readouterr().err

    return run
