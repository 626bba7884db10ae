"""Why a trial ended without a word of its own: what Ray says of its worker, in one line."""

import re

from capsweep.ledger import causes

GONE = "its worker process is gone (killed, or its node was lost)"
LONGEST = 300  # characters of what Ray says

# How Ray 2.60 words the ends of actors.
NODE = re.compile(r"its node has died\. Node Id: \w+ (?:the actor's node was )?(?P<how>.+)")
WORKER = re.compile(
    r"Worker exit type: (?P<kind>\w+) Worker exit detail: (?P<how>.+?)\.?(?: Some common causes|$)"
)
NOT_STARTED = ("Failed to set up runtime environment", "error raised in its creation task")
NEVER_RAN = re.compile(r"\.? The actor never ran - .*")
LOW_ON_MEMORY = ("running low on memory", "NODE_OUT_OF_MEMORY")


def cause(said: str) -> str:
    """The cause of a trial of which Ray says this, in any number of lines; none: "".

    A worker that was lost, which may go better on another try, or a node without memory.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    text = NEVER_RAN.sub("", " ".join(lines))
    if any(sign in text for sign in LOW_ON_MEMORY):
        return causes.NODE_MEMORY
    ip = re.search(r"(?:^|\s)ip: (\S+)", text)
    on = f" on {ip[1]}" if ip else ""
    if node := NODE.search(text):
        where = f" {ip[1]}" if ip else ""
        return _lost(f"its node{where} was lost: {node['how']}")
    if worker := WORKER.search(text):
        # Of a signal Ray learns no more than that the connection ended.
        verb = "was killed or crashed" if worker["kind"] == "SYSTEM_ERROR" else "ended"
        return _lost(f"its worker process{on} {verb} ({worker['kind']}: {worker['how']})")
    if any(sign in text for sign in NOT_STARTED):
        return _lost(f"its worker{on} could not start: {lines[-1]}")
    if not lines:
        return _lost(GONE)
    return _lost(f"its worker{on} failed: {lines[-1]}")


def _lost(why: str) -> str:
    return causes.describe_loss(why if len(why) <= LONGEST else f"{why[: LONGEST - 1]}…")
