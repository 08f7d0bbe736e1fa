"""What a page may say about an error: a sentence, without any path of the server."""

import re
from collections.abc import Mapping

# An absolute path of POSIX or Windows, also after `file:`. It is no part of an address or of a relative path, and ends
# at a space.
_PATH = re.compile(
    r"""(?:(?<![\w:/.\\~-])|\bfile:(?://)?)(?:~?/|[A-Za-z]:[\\/])(?:[^\s/\\'"<>|:]+[/\\])+([^\s/\\'"<>|:,;)]*[\w)\]])?"""
)


def without_paths(sentence: str, names: Mapping[str, str]) -> str:
    """
    A sentence with names in place of paths.

    Args:
        sentence: may hold paths of files on this machine.
        names: what the page calls some of these files, by path. Of all other paths, only the last part is left.
    """
    for path in sorted(names, key=len, reverse=True):
        sentence = sentence.replace(path, names[path])
    return _PATH.sub(lambda match: match[1] or "a folder", sentence)
