"""`toolcrib login` and `logout`: the accounts of services that built-in tools use."""

from __future__ import annotations

import asyncio

import click

from toolcrib.cli.browser_login import LOGIN_SECONDS, BrowserLogin
from toolcrib.cli.output import note
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.integrations.spotify_login import REDIRECT_PORT, SpotifyLogin
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.redirect_listener import HOST, PATH, open_listener

SERVICES = ("spotify",)
DASHBOARD = "https://developer.spotify.com/dashboard"


@click.command(name="login")
@click.argument("service", type=click.Choice(SERVICES))
@click.option("--client-id", default="", help="The client id of your app, instead of SPOTIFY_CLIENT_ID.")
@click.option("--no-browser", is_flag=True, help="Only print the address; do not open a browser.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=LOGIN_SECONDS,
    show_default=True,
    help="How many seconds to wait for the login.",
)
def login(service: str, client_id: str, no_browser: bool, timeout: float) -> None:
    """Log in to a service that built-in tools use, such as Spotify.

    Prints the login address and opens it in a browser, if there is one. If the browser runs on another machine, paste
    the address of the last page, which will not load there. The login is saved in your home folder, readable only by
    you, and renewed automatically; `toolcrib logout SERVICE` deletes it.

    Spotify needs the client id of your own app: create one at https://developer.spotify.com/dashboard with the
    redirect address http://127.0.0.1:8976/callback. It has no secret.

    \b
    Examples:
      toolcrib login spotify
      toolcrib login spotify --no-browser
    """
    settings = load_settings()
    variables = dict(environment())
    load_env_file(settings.home, variables)
    client_id = (client_id or variables.get("SPOTIFY_CLIENT_ID", "")).strip()
    if not client_id:
        raise UsageError(
            f"Spotify needs the client id of your own app; create one at {DASHBOARD} with the redirect address "
            f"http://{HOST}:{REDIRECT_PORT}{PATH}, then run `toolcrib login {service} --client-id ID`"
        )
    asyncio.run(_log_in(_spotify(settings), client_id, not no_browser, timeout))
    note("Logged in to Spotify.")


async def _log_in(spotify: SpotifyLogin, client_id: str, opens_browser: bool, seconds: float) -> None:
    async with open_listener([REDIRECT_PORT, 0]) as listener:
        ask = BrowserLogin(listener, opens_browser=opens_browser, seconds=seconds)
        await spotify.log_in(client_id, ask, listener.redirect_uri)


@click.command(name="logout")
@click.argument("service", type=click.Choice(SERVICES))
def logout(service: str) -> None:
    """Log out of such a service: delete its saved login.

    It cannot be revoked from here; remove your app's access at https://www.spotify.com/account/apps.

    \b
    Example:
      toolcrib logout spotify
    """
    del service
    if _spotify(load_settings()).store.delete():
        note(
            "Deleted the login for Spotify here; remove your app at https://www.spotify.com/account/apps to revoke it."
        )
    else:
        note("There was no saved login for Spotify.")


def _spotify(settings: Settings) -> SpotifyLogin:
    return SpotifyLogin(settings.home, lambda: GuardedClient.from_settings(settings))
