r"""Formats of strings as regexes, where a parser's own are lenient or missing.

A regex may allow fewer strings than its format; those of `EXACT_FORMATS` allow the same ones.
"""

from functools import cache

from quire_structured_output.schemas.ecma_regex import anchored_match

_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_YEAR = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP}-02-29)"
)
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_POINTER = r"(?:/(?:[A-Za-z0-9 _.\-:@!$&'()*+,;=#%?\[\]{}]|~[01])*)*"
_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})"
_SEGMENT = r"(?:[A-Za-z0-9._~!$&'()*+,;=@\-]|%[0-9A-Fa-f]{2})"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_AUTHORITY = rf"//(?:{_LABEL}(?:\.{_LABEL})*)(?::[0-9]{{1,5}})?(?:/{_PCHAR}*)*"
_RELATIVE = rf"(?:{_AUTHORITY}|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?|{_SEGMENT}+(?:/{_PCHAR}*)*|){_TAIL}"
URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}|{_PCHAR}+(?:/{_PCHAR}*)*){_TAIL}"
_REGEX_ATOM = (
    r"(?:(?:[A-Za-z0-9 _,:;=@#%&/<>!~'-]|\\[dDwWsS.\\/^$*+?()\[\]{}|-]|\."
    r"|\[\^?(?:a-z|A-Z|0-9|[A-Za-z0-9_. ]|\\[dws-])+\])(?:[*+?]|\{[0-9]{1,3}\})?)"
)
_PLAIN_LABEL = r"[A-Za-z0-9]{1,15}(?:-[A-Za-z0-9]{1,15}){0,2}"  # none begins with xn--
_VARIABLE = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?:\*|:[1-9][0-9]{0,3})?"
_EXPRESSION = rf"\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}}"
FORMATS = {  # of which a parser's own would be lenient, or that it lacks; some are narrower
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "uri-reference": rf"(?:{URI}|{_RELATIVE})",
    "regex": rf"\^?(?:{_REGEX_ATOM}|\((?:\?:)?{_REGEX_ATOM}+(?:\|{_REGEX_ATOM}+)*\)[*+?]?)*\$?",
    "uri-template": rf"(?:[A-Za-z0-9!#$&()*+,\-./:;=?@\[\]_~]|%[0-9A-Fa-f]{{2}}|{_EXPRESSION})*",
    "idn-hostname": rf"{_PLAIN_LABEL}(?:\.{_PLAIN_LABEL}){{0,4}}",
    "iri": URI,
    "iri-reference": rf"(?:{URI}|{_RELATIVE})",
}
SAME_FORMATS = ("email", "hostname", "ipv6", "uri", "duration")  # as a parser has them
NARROWER_FORMATS = {"idn-email": "email"}  # in the place of others
EXACT_FORMATS = ("uuid", "ipv4")  # of `FORMATS`
KNOWN_FORMATS = ("color",)  # to validators, and without an equivalent


@cache
def pattern_of_format(name: str) -> str:
    """Return the regex of one of `FORMATS`, as a normal form has it."""
    return anchored_match(f"^(?:{FORMATS[name]})$", "a format")
