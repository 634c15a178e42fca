"""Names and addresses of machines, as both sides look at them."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on ``host``."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether it is an IP address, and not a name that somebody may point elsewhere."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
