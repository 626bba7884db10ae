"""The process that drives a sweep inside a cluster's job: `python -m capsweep.launch.driver`.

It becomes the command it is given. Before that it makes Ctrl-C's signal work again, which a shell
takes from what it starts in the background, and leaves its process id for who is to send it.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from capsweep.storage.files import write_text

MODULE = "capsweep.launch.driver"  # also where it runs as __main__
ENCODED = "--encoded"
PLAIN = "@+=:,./-_"  # beside letters and digits: what no shell reads anything into


def encoded(words: Sequence[str]) -> list[str]:
    """The same command for a launcher that joins words with spaces and gives them to a shell, once
    or twice: no word of it needs a quote.
    """
    if all(quote(word, safe=PLAIN) == word != "" for word in words):
        return list(words)
    return ["python", "-m", MODULE, ENCODED, *(quote(word, safe=PLAIN) or "%" for word in words)]


def main(arguments: Sequence[str]) -> None:
    """Become the command. arguments: `--encoded` and its encoded words, or a file for the process
    id and its words.
    """
    first, *words = arguments
    if first == ENCODED:
        words = [unquote(word) if word != "%" else "" for word in words]
    else:
        write_text(Path(first), str(os.getpid()))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(words[0], words)


if __name__ == "__main__":
    main(sys.argv[1:])
