"""Where this user's files lie, by the habits of the operating system."""

from pathlib import Path

import platformdirs


def default_wallet() -> Path:
    return Path(platformdirs.user_data_dir("meshnet")) / "wallet.pem"


def default_tracker_key() -> Path:
    return Path(platformdirs.user_data_dir("meshnet")) / "tracker.pem"


def default_database() -> str:
    return f"sqlite:///{Path(platformdirs.user_data_dir('meshnet')) / 'tracker.db'}"


def default_cache_dir() -> Path:
    return Path(platformdirs.user_cache_dir("meshnet"))
