"""Bad archives for `ledger import`: damaged, or made to harm."""

import io
import json
import tarfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from bad_inputs import CODES, Base, Case, Outcome, files_below, keep, mutated, refused

from capsweep.storage.files import hash_bytes


def archive(chance: Random, base: Base) -> Case:
    """An export that was damaged, or made to harm."""
    told, content = chance.choice([_bad_bytes, _bad_member, _bad_member, _forged, _forged])(
        chance, base
    )

    def judge(outcome: Outcome, folder: Path) -> str | None:
        if outcome.status == 0 and content != base.archive:
            return _as_whole(base, folder)  # such as damage in what a tar fills up with
        if wrong := refused("bad.tar")(outcome, folder):
            return wrong
        written = files_below(folder).keys() - before
        return f"it wrote {sorted(written)[:3]}" if written else None

    before = files_below(base.folder).keys() | {"bad.tar"}
    return Case(
        f"archive: {told}",
        ["ledger", "import", "bad.tar", "--storage", "new"],
        judge,
        lambda folder: keep(folder / "bad.tar", content),
    )


def _as_whole(base: Base, folder: Path) -> str | None:
    """The import is that of the archive as it was."""
    for signature in base.signatures:
        for name in ("config.yaml", "weights.ckpt", "predictions.npz", "provenance.json"):
            path = f"ledger/{signature[:2]}/{signature}/{name}"
            there, here = folder / "new" / path, base.folder / "out" / path
            if not there.exists() or there.read_bytes() != here.read_bytes():
                return f"a silent use: {name} of {signature} was imported otherwise"
    return None


def _bad_bytes(chance: Random, base: Base) -> tuple[str, bytes]:
    if chance.random() < 0.6:  # of headers, which are a small part
        headers = [
            n
            for n in range(0, len(base.archive), 512)
            if base.archive[n + 257 : n + 262] == b"ustar"
        ]
        at = chance.choice(headers) + chance.randrange(512)
        new = bytes([chance.randrange(256)])
        return f"another byte at {at}, of a header", base.archive[:at] + new + base.archive[
            at + 1 :
        ]
    return mutated(chance, base.archive)


def _members(content: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        streams = [(member, tar.extractfile(member)) for member in tar]
        return [(member, stream.read()) for member, stream in streams if stream is not None]


def _packed(members: Sequence[tuple[tarfile.TarInfo, bytes]], how: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=how) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content.ljust(info.size, b"\0")))
    return file.getvalue()


def _bad_member(chance: Random, base: Base) -> tuple[str, bytes]:
    """One more member, or one that is otherwise, which the manifest does not know."""
    members = _members(base.archive)
    at = chance.randrange(len(members) + 1)
    more = tarfile.TarInfo(
        chance.choice(
            [
                "/etc/x",
                "../x",
                f"{base.signatures[0]}/../../x",
                "x/config.yaml",
                CODES,
                "é" * 300,
                "",
            ]
        )
    )
    kind = chance.choice(
        ["file", "link", "hard link", "device", "pipe", "folder", "twice", "swap", "gone"]
    )
    types = {"link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "device": tarfile.CHRTYPE,
             "pipe": tarfile.FIFOTYPE, "folder": tarfile.DIRTYPE}  # fmt: skip
    if kind == "gone":
        members.pop(chance.randrange(len(members)))
    elif kind == "twice":
        members.insert(at, members[chance.randrange(len(members))])
    elif kind == "swap":
        first, second = chance.sample(range(len(members)), 2)
        (a, one), (b, two) = members[first], members[second]
        a.size, b.size = len(two), len(one)
        members[first], members[second] = (a, two), (b, one)
    else:
        more.type, more.linkname = types.get(kind, tarfile.REGTYPE), "/etc/passwd"
        members.insert(at, (more, b""))
    how = chance.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    return f"{kind} {more.name[:20]!a} at {at}", _packed(members, how)


BOMB = "a: &a [1]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 9)}]\n" for old, new in pairwise("abcdefghi")
)
CONTENTS = (
    b"", b"[]", b"3", b"{", b"[" * 50_000, b"- " * 50_000, b'{"a":' * 50_000, BOMB.encode(), b"\0",
    b"\xff\xfe", b"a: 2001-99-99", b"a: !!python/name:os.system ''", b"1" * 5_000, b"{a: .nan}",
    b'{"metrics": 3}', b'{"metrics": {"test/error": "x"}}', b'{"metrics": {"test/error": -4}}',
    b'{"metrics": {"test/error": NaN}}', b'{"metrics": {}, "code": 3}', CODES.encode(),
)  # fmt: skip
MANIFESTS = (
    [], {}, 3, {"sha256": 3}, {"sha256": {}}, {"format": 1, "sha256": {"a": 1}},
    {"format": 10**30, "sha256": {}}, {"format": CODES, "sha256": {}},
    {"format": 1, "sha256": [[]]},
)  # fmt: skip
NAMES = (
    f"SIGNATURE/{'a' * 300}", "SIGNATURE/../x", "/x", "SIGNATURE/a\0b", "SIGNATURE/evals", "x",
    "SIGNATURE/evals/../../x", "SIGNATURE/.hidden", "SIGNATURE/é", "SIGNATURE/a/b/c", "SIGNATURE/",
    f"{CODES}/config.yaml", "../../x/config.yaml", "SIGNATUREx/config.yaml", "SIGNATURE/\udc80",
)  # fmt: skip


def _forged(chance: Random, base: Base) -> tuple[str, bytes]:
    """A member with other content or of another name, which the manifest knows; or another one."""
    members = _members(base.archive)
    manifest: object = json.loads(members[0][1])
    assert isinstance(manifest, dict)
    name = chance.choice(["config.yaml", "result.json", "a manifest", "a name", "a name"])
    content = chance.choice(CONTENTS)
    if name == "a manifest":
        manifest = chance.choice(MANIFESTS)
        told = ascii(manifest)
    elif name == "a name":
        path = chance.choice(NAMES).replace("SIGNATURE", base.signatures[0])
        manifest["sha256"][path] = hash_bytes(content)
        members.append((tarfile.TarInfo(path), content))
        told = ascii(path[-40:])
    else:
        path = f"{base.signatures[0]}/{name}"
        manifest["sha256"][path] = hash_bytes(content)
        members = [(info, content if info.name == path else old) for info, old in members]
        told = ascii(content[:30])
    members[0] = (members[0][0], json.dumps(manifest).encode())
    for info, new in members:
        info.size = len(new)
    return f"{name} {told}", _packed(members, tarfile.PAX_FORMAT)
