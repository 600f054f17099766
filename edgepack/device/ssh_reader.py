"""OpenSSH's client configuration as readconf.c of OpenSSH 9.2 reads it.

For machines without its `ssh`, and for the names of whole fleets, which thousands of processes
would be asked about. What is not understood is refused with its file and line: nothing is guessed.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import pwd
import re
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgepack.base.errors import ConfigError

Options = dict[str, list[str]]
"""Values by the keyword in small letters, as `ssh -G` prints them."""

_MAX_DEPTH = 16
_SPACE = " \t\r\n"

# What decides whether a host is reached, by what its values are.
_FLAGS = {"identitiesonly", "proxyusefdpass"}
_WORDS = {
    "hostname", "user", "port", "identityagent", "hostkeyalias", "addressfamily", "bindaddress",
    "bindinterface", "connecttimeout", "stricthostkeychecking", "canonicalizehostname",
}  # fmt: skip
_ADDING = {"identityfile", "certificatefile"}
_LISTS = {"userknownhostsfile", "globalknownhostsfile"}
_RAW = {"proxycommand", "knownhostscommand"}
KEYWORDS = (_FLAGS | _WORDS | _ADDING | _LISTS | _RAW | {"proxyjump"}) - {"canonicalizehostname"}
"""Those of which `read` gives the values."""

# What decides nothing here. ssh itself checks their values.
_OTHERS = frozenset(
    # A page of strings would be no list to read.
    """addkeystoagent batchmode canonicaldomains canonicalizefallbacklocal canonicalizemaxdots
    canonicalizepermittedcnames casignaturealgorithms challengeresponseauthentication checkhostip
    ciphers clearallforwardings compression connectionattempts controlmaster controlpath
    controlpersist dynamicforward enableescapecommandline enablesshkeysign escapechar
    exitonforwardfailure fingerprinthash forkafterauthentication forwardagent forwardx11
    forwardx11timeout forwardx11trusted gatewayports gssapiauthentication
    gssapidelegatecredentials hashknownhosts hostbasedacceptedalgorithms hostbasedauthentication
    hostbasedkeytypes hostkeyalgorithms ignoreunknown ipqos kbdinteractiveauthentication
    kbdinteractivedevices kexalgorithms localcommand localforward loglevel logverbose macs
    nohostauthenticationforlocalhost numberofpasswordprompts passwordauthentication
    permitlocalcommand permitremoteopen pkcs11provider preferredauthentications
    pubkeyacceptedalgorithms pubkeyacceptedkeytypes pubkeyauthentication rekeylimit remotecommand
    remoteforward requesttty requiredrsasize revokedhostkeys securitykeyprovider sendenv
    serveralivecountmax serveraliveinterval sessiontype setenv stdinnull streamlocalbindmask
    streamlocalbindunlink syslogfacility tcpkeepalive tunnel tunneldevice updatehostkeys
    verifyhostkeydns visualhostkey xauthlocation
    globalknownhostsfile2 userknownhostsfile2 useprivilegedport rhostsauthentication usersh
    protocol""".split()  # noqa: SIM905
)

_YES_NO = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
_STRICT = {
    "yes": "true", "true": "true", "no": "false", "false": "false", "off": "false", "ask": "ask",
    "accept-new": "accept-new",
}  # fmt: skip
_TIME = re.compile(r"(\d+)([smhdw]?)", re.IGNORECASE)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_HOP = re.compile(
    r"(?:[^@\s,]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^@:\s,\[\]/\"'%-][^@:\s,\[\]/\"'%]*)(?::\d{1,5})?"
)
_URI = re.compile(r"ssh://([^/%\"'\s]+?)/?")

DEFAULT_KEYS = tuple(
    f"~/.ssh/id_{kind}"
    for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa")
)


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A configuration file; relative names in Include lines of the `system`'s lie in /etc/ssh.
    A `guarded` one must not be another's to write."""

    path: Path
    system: bool = False
    guarded: bool = False


def home() -> Path:
    """The home folder that OpenSSH goes by: the account's, whatever $HOME is."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container's user may be no more than a number
        return Path.home()


def local_user() -> str:
    """The name of this process's account, or its number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def read(
    sources: Sequence[ConfigFile], host: str, *, user: str | None = None, port: int | None = None
) -> Options:
    """What `sources` say of `host`, of all `KEYWORDS`; `user` and `port` count before them.

    Raises ConfigError for what OpenSSH refuses, and for what is not understood here.
    """
    reading = _Reading(original=host, host=host)
    if user is not None:
        reading.options["user"] = [user]
    if port is not None:
        reading.options["port"] = [str(port)]
    for source in sources:
        reading.file(source)
    reading.host = _final_name(reading.options.get("hostname", ["%h"])[0], host)
    if reading.wants_final:
        reading.options["hostname"] = [reading.host]
        reading.final = True
        for source in sources:
            reading.file(source)
    return _finished(reading.options, reading.host)


def _finished(options: Options, host: str) -> Options:
    """With the defaults, and without what is "none"."""
    defaults = {
        "user": [local_user()],
        "port": ["22"],
        "addressfamily": ["any"],
        "identityfile": list(DEFAULT_KEYS),
        "identitiesonly": ["no"],
        "proxyusefdpass": ["no"],
        "stricthostkeychecking": ["ask"],
        "connecttimeout": ["none"],
        "userknownhostsfile": ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"],
        "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"],
    }
    result = {**defaults, **options, "hostname": [host]}
    for name in ("proxycommand", "proxyjump", "knownhostscommand"):
        if result.get(name, [""])[0].lower() == "none":
            del result[name]
    return {name: values for name, values in result.items() if name in KEYWORDS}


def _final_name(pattern: str, host: str) -> str:
    """The HostName `pattern` for `host`, in OpenSSH's own form."""
    if "%" in re.sub("%[h%]", "", pattern):
        raise ConfigError(f"HostName {pattern}: only %h and %% have a meaning there")
    name = re.sub(r"%([h%])", lambda found: host if found[1] == "h" else "%", pattern)
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return "".join(c.lower() if c.isascii() else c for c in name)
    return socket.getnameinfo(found[0][4], socket.NI_NUMERICHOST)[0]


@dataclass(kw_only=True)
class _Reading:
    """One host's: what was read so far."""

    original: str
    host: str
    final: bool = False
    wants_final: bool = False
    options: Options = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def file(
        self, source: ConfigFile, *, depth: int = 0, never: bool = False, active: bool = True
    ) -> None:
        """Read a file; in one that is included where nothing applies, nothing `never` does."""
        if depth > _MAX_DEPTH:
            raise ConfigError(f"{source.path}: Include lines nest too deeply")
        try:
            if source.guarded:
                _check_owner(source.path)
            text = source.path.read_bytes().decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{source.path}: {error.strerror}") from None
        for number, line in enumerate(text.split("\n"), 1):
            at = _At(source=source, number=number, depth=depth, never=never)
            active = self._line(line.rstrip(_SPACE + "\f").lstrip(_SPACE), at, active)

    def _line(self, line: str, at: _At, active: bool) -> bool:
        """Take a line; whether those after it apply."""
        if not line or line.startswith("#"):
            return active
        keyword, rest = _delimited(line)
        if keyword is None or rest is None or not rest.lstrip(_SPACE):
            raise at.error(f"{keyword or line}: no value")
        keyword, rest = keyword.lower(), rest.lstrip(_SPACE)
        if not keyword:
            raise at.error("no keyword")
        words = _arguments(rest, at)
        if keyword == "host":
            return self._matches_host(words, at) and not at.never
        if keyword == "match":
            return self._matches(rest, at) and not at.never
        if keyword == "include":
            self._include(words, at, active)
            return active
        if keyword not in KEYWORDS | _OTHERS | {"canonicalizehostname"}:
            if not any(_glob(pattern.lower(), keyword) for pattern in self.ignored):
                raise at.error(f"unknown: {keyword}")
            return active
        values = _values(keyword, rest, words, at)
        if keyword == "ignoreunknown":
            if active and not self.ignored:
                self.ignored = [word.strip() for word in ",".join(words).split(",")]
        elif keyword not in _OTHERS and active:
            self._set(keyword, values, at)
        return active

    def _set(self, keyword: str, values: list[str], at: _At) -> None:
        """The first value counts; keys and certificates are added, each once."""
        if keyword == "canonicalizehostname":
            if keyword not in self.options and values != ["no"]:
                raise at.error("CanonicalizeHostname asks the name server: only ssh does that")
            self.options.setdefault(keyword, values)
        elif keyword in _ADDING:
            known = self.options.setdefault(keyword, [])
            known += [value for value in values if value not in known]
        elif keyword in ("proxycommand", "proxyjump"):
            # Whichever of both comes first; "no jump" leaves a command.
            before = {"proxycommand", "proxyjump"} & self.options.keys()
            no_jump = self.options.get("proxyjump") == ["none"]
            if not before or (before == {"proxyjump"} and no_jump and keyword == "proxycommand"):
                self.options[keyword] = values
        elif (keyword, values) != ("connecttimeout", ["none"]):  # which is what is not set
            self.options.setdefault(keyword, values)

    def _matches_host(self, patterns: list[str], at: _At) -> bool:
        active = False
        for pattern in patterns:
            negated = pattern.startswith("!")
            if not pattern.removeprefix("!"):
                raise at.error("Host: an empty pattern")
            if _glob(pattern.removeprefix("!"), self.host):
                if negated:
                    return False
                active = True
        return active

    def _matches(self, rest: str | None, at: _At) -> bool:
        """A Match line; all its criteria are looked at, as they may be wrong."""
        result, count = True, 0
        while rest and (word := _delimited(rest))[0] and not str(word[0]).startswith("#"):
            name, rest = str(word[0]).lower(), word[1]
            negated, name = name.startswith("!"), name.removeprefix("!")
            if name == "all":
                if count > 1 or (
                    rest and rest.strip(_SPACE) and not rest.lstrip(_SPACE).startswith("#")
                ):
                    raise at.error("Match: all stands alone")
                return result and not negated
            count += 1
            if name in ("canonical", "final"):
                self.wants_final |= name == "final"
                result &= self.final != negated
                continue
            argument, rest = _delimited(rest) if rest else (None, None)
            if not argument or argument.startswith("#"):
                raise at.error(f"Match: {name}: no value")
            if name == "exec" and result:
                raise at.error("Match exec runs a command: only ssh does that")
            if name != "exec":
                result &= self._is(name, argument, at) != negated
        if not count:
            raise at.error("Match: no criterion")
        return result

    def _is(self, name: str, patterns: str, at: _At) -> bool:
        user = self.options.get("user", [local_user()])[0]
        host = self.host
        if not self.final and "hostname" in self.options:
            host = re.sub(
                r"%([h%])",
                lambda found: self.host if found[1] == "h" else "%",
                self.options["hostname"][0],
            )
        match name:
            case "host":
                return _in_list(host.lower(), patterns.lower())
            case "originalhost":
                return _in_list(self.original.lower(), patterns.lower())
            case "user":
                return _in_list(user, patterns)
            case "localuser":
                return _in_list(local_user(), patterns)
        raise at.error(f"Match: unknown: {name}")

    def _include(self, words: list[str], at: _At, active: bool) -> None:
        system = at.source.system
        for word in words:
            if not word or "${" in word or "%" in word or (system and word.startswith("~")):
                raise at.error(f"Include {word!r} is not understood")
            base = Path("/etc/ssh") if system else home() / ".ssh"
            path = tilde(word)
            pattern = str(path) if path.is_absolute() else f"{base}/{word}"
            for name in sorted(glob.glob(pattern, include_hidden=False)):  # noqa: PTH207 - absolute
                if Path(name).is_dir():
                    raise at.error(f"Include {name}: a folder")
                included = ConfigFile(path=Path(name), system=system, guarded=not system)
                self.file(included, depth=at.depth + 1, never=at.never or not active, active=active)


@dataclass(frozen=True, kw_only=True)
class _At:
    """A line of a file."""

    source: ConfigFile
    number: int
    depth: int
    never: bool

    def error(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.source.path}:{self.number}: {what}",
            hint="use another configuration with --ssh-config FILE",
        )


def _values(keyword: str, rest: str, words: list[str], at: _At) -> list[str]:
    """The values of a line, as `ssh -G` writes them."""
    if keyword in _RAW:
        return [rest.lstrip(_SPACE + "=")]
    if keyword == "proxyjump":
        return [_jump(rest.lstrip(_SPACE + "="), at)]
    if keyword in _OTHERS:
        return words
    if not words or not words[0]:
        raise at.error(f"{keyword}: no value")
    if keyword in _LISTS:
        return words
    if len(words) > 1:
        raise at.error(f"{keyword}: more than one value")
    return [_value(keyword, words[0], at)]


def _value(keyword: str, value: str, at: _At) -> str:
    """One value, in the form of `ssh -G`."""
    known = {
        **dict.fromkeys(_FLAGS, _YES_NO),
        "canonicalizehostname": {**_YES_NO, "always": "always"},
        "stricthostkeychecking": _STRICT,
        "addressfamily": {name: name for name in ("inet", "inet6", "any")},
    }.get(keyword)
    if known is not None:
        return _one_of(keyword, value, known, at)
    if keyword == "port":
        if not re.fullmatch(r"[0-9]{1,5}", value) or not 0 < int(value) < 65_536:
            raise at.error(f"Port {value!r} is not understood: a number from 1 to 65535")
        return str(int(value))
    return _seconds(value, at) if keyword == "connecttimeout" else value


def _one_of(keyword: str, value: str, known: dict[str, str], at: _At) -> str:
    if value.lower() not in known:
        raise at.error(f"{keyword} {value!r}: not one of {', '.join(known)}")
    return known[value.lower()]


def _seconds(value: str, at: _At) -> str:
    if value == "none":
        return value
    if not re.fullmatch(f"(?:{_TIME.pattern})+", value, re.IGNORECASE):
        raise at.error(f"ConnectTimeout {value!r} is not a time")
    return str(sum(int(number) * _UNITS[unit.lower()] for number, unit in _TIME.findall(value)))


def _jump(rest: str, at: _At) -> str:
    """Hops as `ssh -G` writes them."""
    value = re.split(r"\s", rest, maxsplit=1)[0]
    if value.lower() == "none":
        if value != rest:  # with a comment behind it OpenSSH takes it for a host
            raise at.error(f"ProxyJump {rest!r} is not understood")
        return value
    hops = []
    for word in value.split(","):
        uri = _URI.fullmatch(word)
        hop = uri[1] if uri else word
        if not _HOP.fullmatch(hop):
            raise at.error(f"ProxyJump {rest!r} is not understood")
        hops.append(hop)
    return ",".join(hops)


def _delimited(text: str) -> tuple[str | None, str | None]:
    """The first word and what follows it: misc.c's strdelim, where "=" separates as well."""
    found = re.search(r'[ \t\r\n"=]', text)
    if not found:
        return text, None
    at = found.start()
    if text[at] == '"':
        end = text.find('"', at + 1)
        if end < 0:
            return None, None
        return text[:at] + text[at + 1 : end], text[end + 1 :].lstrip(_SPACE)
    rest = text[at + 1 :].lstrip(_SPACE)
    if text[at] != "=" and rest.startswith("="):
        rest = rest[1:].lstrip(_SPACE)
    return text[:at], rest


def _arguments(text: str, at: _At) -> list[str]:
    """The words of a line, without quotes: misc.c's argv_split."""
    words: list[str] = []
    index = 0
    while index < len(text):
        if text[index] in " \t":
            index += 1
            continue
        if text[index] == "#":
            break
        word, quote = "", ""
        while index < len(text):
            letter, following = text[index], text[index + 1 : index + 2]
            if letter == "\\" and (
                following in ("'", '"', "\\") or (not quote and following == " ")
            ):
                index += 1
                word += following
            elif not quote and letter in " \t":
                break
            elif not quote and letter in "\"'":
                quote = letter
            elif quote == letter:
                quote = ""
            else:
                word += letter
            index += 1
        if quote:
            raise at.error("a quote does not end")
        words.append(word)
    return words


def _glob(pattern: str, text: str) -> bool:
    """Whether `text` is as `pattern` has it, in which only * and ? are special."""
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


def _in_list(text: str, patterns: str) -> bool:
    """match.c's match_pattern_list: one that is negated and matches decides."""
    found = False
    for pattern in patterns.split(","):
        if _glob(pattern.removeprefix("!"), text):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def tilde(text: str) -> Path:
    """`text` with ~ as OpenSSH understands it."""
    if text == "~" or text.startswith("~/"):
        return home() / text[2:]
    return Path(text).expanduser() if text.startswith("~") else Path(text)


def _check_owner(path: Path) -> None:
    """As OpenSSH does: a file that others may write is not the user's word."""
    state = path.stat()
    if state.st_uid not in (0, os.getuid()) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{path}: others may write it", hint=f"chmod go-w {path}")
