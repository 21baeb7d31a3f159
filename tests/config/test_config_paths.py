from pathlib import Path

import pytest

from toolcrib.config.paths import Home, find_hermes_home, find_home
from toolcrib.core.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"TOOLCRIB_HOME": "/a", "HERMES_HOME": "/b", "HOME": "/me"}, "/a"),
        ({"TOOLCRIB_HOME": "", "HERMES_HOME": "/b", "HOME": "/me"}, "/b"),
        ({"HERMES_HOME": "~/old", "HOME": "/me"}, "/me/old"),
        ({"TOOLCRIB_HOME": "~", "HOME": "/me"}, "/me"),
        ({"HOME": "/me"}, "/me/.toolcrib"),
    ],
)
def test_home_is_ours_then_hermes_then_the_default(environ, root):
    """TOOLCRIB_HOME wins over HERMES_HOME, which wins over ~/.toolcrib; `~` is expanded."""
    assert find_home(environ) == Home(Path(root))


def test_a_relative_home_is_made_absolute():
    """A home given as a relative path does not move when the process changes its directory."""
    assert find_home({"TOOLCRIB_HOME": "here"}).root == Path.cwd() / "here"


def test_finding_a_home_creates_nothing(tmp_path):
    """Asking for the home and for the paths in it leaves the disk alone."""
    home = find_home({"TOOLCRIB_HOME": str(tmp_path / "new")})

    assert home.log_file == home.root / "logs" / "toolcrib.log"
    assert not home.root.exists()


def test_a_home_of_an_unknown_user_is_a_clear_error():
    """A `~name` that does not exist is answered with the variable to set."""
    with pytest.raises(ConfigError, match="set TOOLCRIB_HOME to a full path"):
        find_home({"TOOLCRIB_HOME": "~no-such-user-here/x"})


def test_hermes_home_defaults_to_its_usual_folder():
    """Without HERMES_HOME, Hermes Agent lives in ~/.hermes."""
    assert find_hermes_home({"HOME": "/me"}) == Path("/me/.hermes")
