"""How a data set is cut into shards, and how many bytes they are."""

from collections.abc import Mapping, Sequence

from capsweep.data.shards.layout import BLOCK, Field
from capsweep.data_prep.making.shard import Part
from capsweep.errors import ConfigError

USUAL = 100_000  # examples of a shard, where their number is not given: 131 MB of MultiMNIST
CHECKSUM = 4  # bytes, Fletcher32 of a chunk
LONGEST = 200_000  # shards of all splits: what index.json has room for
# HDF5's index of chunks is a B-tree of 64 entries a node; one that is full keeps 57 when, since
# chunks come in their order, it is split.
ENTRIES, KEPT = 64, 57


def parts(
    splits: Mapping[str, int], shards: int | None, usual: int = USUAL, most: int | None = None
) -> tuple[Part, ...]:
    """The shards of all splits; their sizes within a split differ by one example at most.

    splits: examples by split. shards: those of "train", or of the first split where there is no
    such; other splits have as many examples in each. usual: examples of one where `shards` is None;
    most: at most. Raises ConfigError when there are not as many examples, or too many for a shard.
    """
    named = "train" if "train" in splits else next(iter(splits))
    train = splits[named]
    shards = -(-train // usual) if shards is None else shards
    if not 1 <= shards <= train:
        raise ConfigError(
            f"SHARDS={shards}: must be 1 to {train:,}, the number of {named} examples"
        )
    if most is not None and -(-train // shards) > most:
        raise ConfigError(
            f"SHARDS={shards}: must be {-(-train // most)} or more, since a worker is given all "
            f"examples of a shard and has memory for {most:,}"
        )
    usual = -(-train // shards)
    counts = {split: shards if split == named else -(-n // usual) for split, n in splits.items()}
    if (total := sum(counts.values())) > LONGEST:
        raise ConfigError(
            f"SHARDS={shards}: {total:,} shards in all splits, and index.json has room for "
            f"{LONGEST:,}; set SHARDS to fewer, or ask for fewer examples (PAIRS)"
        )
    return tuple(
        part for split, examples in splits.items() for part in _cut(split, examples, counts[split])
    )


def _cut(split: str, examples: int, shards: int) -> list[Part]:
    bounds = [number * examples // shards for number in range(shards + 1)]
    return [
        Part(f"{split}-{number:05d}.h5", split, bounds[number], bounds[number + 1] - bounds[number])
        for number in range(shards)
    ]


def nbytes(fields: Sequence[Field], examples: int, overhead: int) -> int:
    """Bytes of a shard that is not compressed.

    overhead: those of headers, of attributes and of one node of every index, as of a small shard.
    """
    chunks = -(-examples // BLOCK)
    more = (_nodes(chunks) - 1) * sum(_node_bytes(field) for field in fields)
    return overhead + _stored(fields, examples) + more


def overhead_of(fields: Sequence[Field], examples: int, measured: int) -> int:
    """What `nbytes` is to be told, from the bytes of one shard."""
    return measured - nbytes(fields, examples, 0)


def _stored(fields: Sequence[Field], examples: int) -> int:
    """Bytes of all chunks; the last one is stored in full."""
    chunks = -(-examples // BLOCK)
    one = min(BLOCK, examples)
    return chunks * sum(one * field.nbytes + CHECKSUM for field in fields)


def _nodes(chunks: int) -> int:
    """Nodes of a B-tree of so many entries, added in their order."""
    nodes = 1 if chunks <= ENTRIES else 1 - (ENTRIES - chunks) // KEPT
    return nodes if nodes == 1 else nodes + _nodes(nodes)


def _node_bytes(field: Field) -> int:
    """Of a node: 24 bytes, a child's address for every entry, and a key on both sides of it."""
    key = 8 + 8 * (len(field.shape) + 2)
    return 24 + 8 * ENTRIES + key * (ENTRIES + 1)
