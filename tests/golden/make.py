"""Makes the golden runs: `make.py` records them for this processor's maker.

For the tests, `make.py FILE` writes them elsewhere, and `make.py FILE few` those of golden.yaml alone.
"""

import contextlib
import io
import os
import sys
import tempfile
import warnings
from pathlib import Path

from golden_values import PATHS, recorded_for, refusal, text_of

from troll.common.files import write_text
from troll.common.numerics import NUMERICS
from troll.common.processor import first_processor, prepare_processor, quiet_libraries


def main(out, every):
    # A GPU has numbers of its own, and a base model that was made before would show nothing.
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TROLL_BASE_MODELS": "0", "HF_HUB_OFFLINE": "1"}
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"):
        os.environ.pop(name, None)
    os.environ["OMP_NUM_THREADS"] = "1"
    prepare_processor()
    quiet_libraries()
    warnings.simplefilter("ignore", FutureWarning)  # TRL sets what transformers has renamed
    from golden_runs import make  # it imports torch, after which all this would be too late

    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        found = make(Path(directory), every=every)
    if out is None:
        maker = first_processor().get("vendor_id", "")
        if reason := refusal(recorded_for(maker, NUMERICS), found):
            sys.exit(f"error: {reason}")
        out = PATHS[maker]
    write_text(out, text_of(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, every=sys.argv[2:] != ["few"])
