"""Access to what is served over HTTP: TLS and basic authentication.

The file has the format of Prometheus' exporter toolkit (``docs/web-configuration.md`` there), which
operators know. A setting that is not implemented here is refused.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amp_nova.exceptions import ConfigInvalid
from amp_nova.private_files import check_private

COST_MAX = 14
"""Greatest cost of a bcrypt hash: with 15, a check takes longer than a connection may last."""
_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_NOBODY = "$2b$10$C6UzMDM.H6dfI/f/IKcEe.3sKZk4a1aX2V1H4i4pPqpIiQeKbkYm2"
"""Checked for unknown users, so that the response time does not reveal which users exist."""
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_TLS_KEYS = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version")
Stamp = tuple[int, int, int]
_FILES = ("cert_file", "key_file", "client_ca_file")


@dataclass(frozen=True, slots=True)
class Access:
    """The content of a web configuration file; ``users``: bcrypt hashes by name.

    ``state``: inode, size and modification time of each file that was read; it changes when a
    certificate is renewed.
    """

    tls: ssl.SSLContext | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    state: tuple[tuple[Path, Stamp], ...] = ()


ANYBODY = Access()


def load(path: str | None) -> Access:
    """The access that a web configuration file defines; ``ANYBODY`` without a file.

    Raises:
        ConfigInvalid: the file, or a certificate that it names, cannot be used.
    """
    if not path:
        return ANYBODY
    import yaml  # here, because it takes half a MiB that most agents do not need

    try:
        check_private(path)
        document = yaml.safe_load(Path(path).read_text())
        sections = _mapping(document, "the file", ("tls_server_config", "basic_auth_users"))
        tls = _mapping(sections.get("tls_server_config"), "tls_server_config", _TLS_KEYS)
        files = {k: Path(path).parent / str(tls[k]) for k in _FILES if tls.get(k)}
        users = _mapping(sections.get("basic_auth_users"), "basic_auth_users")
        if users and find_spec("bcrypt") is None:
            raise ValueError("basic_auth_users needs bcrypt, which is not installed")
        return Access(
            _context(tls, files) if tls else None,
            {str(name): _hash(str(name), value) for name, value in users.items()},
            _state(Path(path), *files.values()),
        )
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        reason = " ".join(reason.split())[:200]
        raise ConfigInvalid(
            f"[exporter] web_config_file = {path} cannot be used: {reason}; correct it, or leave "
            "the option out to serve without TLS"
        ) from exc


def renewed(path: str | None, access: Access) -> Access:
    """The access, read again if a file such as a certificate has changed.

    Raises ``ConfigInvalid`` if it then cannot be used.
    """
    if not path or not access.state:
        return access
    try:
        same = all(_stamp(path) == stamp for path, stamp in access.state)
    except OSError:
        same = False
    return access if same else load(path)


def password(header: str) -> tuple[str, str] | None:
    """User and password of an ``Authorization`` header (RFC 7617); ``None`` if malformed."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    user, colon, secret = text.partition(":")
    return (user, secret) if colon else None


def matches(access: Access, user: str, secret: str) -> bool:
    """Whether a password is the user's; takes the same time if the user does not exist."""
    import bcrypt

    # bcrypt reads 72 bytes, and newer versions refuse more.
    known = bcrypt.checkpw(secret.encode()[:72], access.users.get(user, _NOBODY).encode())
    return known and user in access.users


def digest(access: Access, user: str, secret: str) -> bytes:
    """A value that identifies a correct password, so that not every scrape has to hash it."""
    kept = access.users.get(user, "").encode()
    return hmac.digest(kept, f"{user}:{secret}".encode(), hashlib.sha256)


def _mapping(value: Any, what: str, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a list of KEY: VALUE")
    unknown = [str(k) for k in value if keys and k not in keys]
    if unknown:
        raise ValueError(f"'{unknown[0][:40]}' in {what} is not supported (is: {', '.join(keys)})")
    return value


def _hash(user: str, value: object) -> str:
    text, shown = str(value), user[:40]
    found = _HASH.fullmatch(text)
    if found is None:
        raise ValueError(f"the password of '{shown}' is not a bcrypt hash (htpasswd -nB {shown})")
    if not 4 <= int(found[1]) <= COST_MAX:
        raise ValueError(f"the bcrypt cost of '{shown}' is {found[1]}: use 4 to {COST_MAX}")
    return "$2b$" + text[4:]  # 2a, 2b and 2y name the same algorithm


def _context(tls: Mapping[str, Any], files: Mapping[str, Path]) -> ssl.SSLContext:
    for key in ("cert_file", "key_file"):
        if key not in files:
            raise ValueError(f"{key} is missing in tls_server_config")
    check_private(files["key_file"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _choice(tls, "min_version", _VERSIONS, "TLS12")
    mode = _choice(tls, "client_auth_type", _CLIENT_AUTH, "NoClientCert")
    if mode != ssl.CERT_NONE and "client_ca_file" not in files:
        raise ValueError("client_auth_type needs client_ca_file")
    try:
        context.load_cert_chain(files["cert_file"], files["key_file"], password="")
        if "client_ca_file" in files:
            context.load_verify_locations(files["client_ca_file"])
    except ssl.SSLError as exc:
        raise ValueError(f"the certificate and key do not load ({exc.reason or exc})") from exc
    context.verify_mode = mode
    return context


def _choice(tls: Mapping[str, Any], key: str, known: Mapping[str, Any], default: str) -> Any:
    value = tls.get(key, default)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{key} is {str(value)[:40]!r}: give one of {', '.join(known)}")
    return known[value]


def _stamp(path: Path) -> Stamp:
    seen = os.stat(path)
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def _state(*paths: Path) -> tuple[tuple[Path, Stamp], ...]:
    return tuple((path, _stamp(path)) for path in paths)
