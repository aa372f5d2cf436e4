"""A corpus of attacks: none scores, none escapes, none stalls the batch or spoils its neighbours."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import audit
from hostile_programs import HOSTILE_PROGRAMS
from troll.tasks.sandbox.pool import sandbox_available

pytestmark = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")


STATUSES = {
    "equal to everything": {"rejected"},
    "int subclass with equality": {"wrong"},  # by what it holds
    "str subclass": {"wrong"},
    "list subclass": {"wrong"},
    "lying subclass of tuple": {"wrong"},
    "lying subclass of fractions.Fraction": {"wrong"},
    "lying subclass of decimal.Decimal": {"wrong"},
    "lying subclass of numpy.ndarray": {"wrong"},
    "generator": {"rejected"},
    "os._exit in call": {"crash"},
    "endless loop": {"timeout"},
    "sleep": {"timeout"},
    "memory bomb": {"memory"},
    "huge text": {"rejected", "timeout"},  # by the speed of the machine
    "kill parent": {"crash"},
    "claim an infrastructure failure": {"rejected", "crash"},
    "syntax error": {"crash"},
    "nan": {"wrong"},
}
# By day, one in eight of them beside those.
FEW = {*STATUSES, *list(HOSTILE_PROGRAMS)[::8]}


@pytest.fixture(scope="module", params=["few", pytest.param("every", marks=pytest.mark.nightly)])
def judged(request):
    """What the audit says of attacks between honest programs, and the verdicts that it says it of."""
    found, verify_code = [], audit.verify_code
    chosen = {
        name: text for name, text in HOSTILE_PROGRAMS.items() if request.param == "every" or name in FEW
    }

    def watched(*arguments, **options):
        found.extend(verify_code(*arguments, **options))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "verify_code", watched)
        patch.setattr(audit, "HOSTILE_PROGRAMS", chosen)
        said = audit.audit_hostile()
    hostile = dict(zip(chosen, found[1::2], strict=True))
    return SimpleNamespace(said=said, honest=found[::2], hostile=hostile)


@pytest.fixture
def verdicts(judged):
    return {"honest": judged.honest, "hostile": judged.hostile}


REFUSED = ("wrong", "crash", "timeout", "memory", "rejected", "incomparable")


@pytest.mark.timeout(120)
def test_no_attack_scores(verdicts):
    assert len(verdicts["hostile"]) > 30
    for name, verdict in verdicts["hostile"].items():
        assert not verdict.base and not verdict.plus and verdict.status in REFUSED, name


def test_neighbours_are_judged_as_ever(verdicts):
    assert {verdict.status for verdict in verdicts["honest"]} == {"passed"}


def test_the_audit_passes(judged):
    assert judged.said["ok"] and judged.said["programs"] == len(judged.hostile)


def test_nothing_was_written_outside(verdicts):
    for directory in ("/tmp", "/dev/shm", "/var/tmp", "/", "/usr", str(Path.cwd())):
        assert not Path(directory, "escaped").exists()


def test_the_corpus_is_large_and_every_attack_differs():
    assert len(HOSTILE_PROGRAMS) >= 150
    assert len(set(HOSTILE_PROGRAMS.values())) == len(HOSTILE_PROGRAMS)


@pytest.mark.parametrize(("name", "statuses"), STATUSES.items())
def test_status_names_the_attack(verdicts, name, statuses):
    assert verdicts["hostile"][name].status in statuses
