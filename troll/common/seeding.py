"""Random streams derived from named coordinates.

No stream depends on the state of another one, so that adding a method never changes another method's data,
and a resumed run equals an uninterrupted one.
"""

import hashlib
import json


def derive_seed(**coordinates: str | int) -> int:
    """Derives a seed from named coordinates, as in ``derive_seed(task="chains", seed=0)``.

    Args:
        **coordinates: names and values that identify the stream, in any order.

    Returns:
        An integer in [0, 2**63): the first 63 bits of the SHA-256 of the coordinates as sorted JSON.
    """
    text = json.dumps(coordinates, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
