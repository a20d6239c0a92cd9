"""Where a key must not go. Apart from the client, so that runs without a server need no package for HTTP."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from leverplus.recipe.model import ModelSection


def warn_of_plain_key(section: ModelSection) -> str:
    """A warning where the key would go unencrypted to another machine; "" where it does not."""
    address = urlsplit(section.url)
    if not section.key_env or address.scheme != "http" or _is_loopback(address.hostname or ""):
        return ""
    return (
        f"warning: the key in {section.key_env} goes to {address.hostname} unencrypted, where everybody on the way can "
        "read it; use https if the server offers it"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
