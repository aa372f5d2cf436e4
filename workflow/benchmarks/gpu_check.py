"""Times and checks head, top-K, rule and a whole step on one GPU, in at most seven minutes.

    python3 workflow/benchmarks/gpu_check.py --out DIR        # on a GPU, with torch, Triton and transformers
    python3 workflow/benchmarks/gpu_check.py --out DIR --dry  # tiny sizes on a CPU, to find mistakes first

The package's default backend is compared with plain torch. DIR/gpu_check.json is written after every row, so
that an interruption only loses the current row. `troll release check results/released/gpu --write` makes the
page in results/released/gpu from it. A sparse checkout without results/ needs only a few MB
(`git clone --filter=blob:none --sparse`, then `git sparse-checkout add troll workflow`).
"""

import argparse
import collections
import functools
import gc
import json
import math
import os
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

BEGUN = time.monotonic()
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]  # the package need not be installed
if __name__ == "__main__" and "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined

from troll.common.errors import UserError  # noqa: E402
from troll.common.files import write_json  # noqa: E402

if TYPE_CHECKING:
    from gpu_cases import Case

DATA = "gpu_check.json"
RESERVE = 15.0
"""Minimum number of seconds left to start another group of rows."""
LEAST, MOST = 5, 30
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


class Bench:
    """Times cases in turns, checks them, and writes every row when it is complete."""

    def __init__(self, out: Path, budget: float, *, dry: bool, about: dict[str, Any]) -> None:
        import torch

        self.torch, self.cuda, self.dry = torch, not dry, dry
        self.path, self.budget, self.begun = out / DATA, budget, BEGUN
        self.report: dict[str, Any] = {"about": about, "limits": {}, "goals": [], "rows": [], "skipped": []}
        self.goals: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda rows: []
        self.own_waits = 0
        if self.cuda:
            self.own_waits = self._launches(lambda: None)["waits"]

    def left(self) -> float:
        """Returns the remaining seconds of the budget."""
        return self.budget - (time.monotonic() - self.begun)

    def sync(self) -> None:
        """Waits for the device."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def limits(self, dtype: Any) -> None:
        """Measures the limits of the GPU: a large product, a large copy, and a small launch."""
        if not self.cuda:
            return
        torch, size = self.torch, 8192
        one, two = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
        bytes_ = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2)]
        small = torch.empty(1, device="cuda")
        runs: list[Callable[[], Any]] = [
            lambda: one @ two,
            lambda: bytes_[0].copy_(bytes_[1]),
            lambda: [small.add_(1) for _ in range(1000)],
        ]
        product, copy, launches = (self._time([run], 0.5)[0]["ms"] for run in runs)
        self.report["limits"] = {
            "tflops": 2e-9 * size**3 / product,
            "terabytes_per_s": 2e-9 * (1 << 30) / copy,
            "launch_us": launches,
        }

    def _time(self, runs: list[Callable[[], Any]], seconds: float) -> list[dict[str, Any]]:
        """Times runs in turns: median and range in ms, ms until the host is free, peak MiB over the start."""
        walls: list[list[float]] = [[] for _ in runs]
        hosts: list[list[float]] = [[] for _ in runs]
        peaks = [0.0 for _ in runs]
        if not self.dry:  # a second call, because the first one compiled kernels
            for run in runs:
                run()
        begun, least, most = time.monotonic(), *((1, 1) if self.dry else (LEAST, MOST))
        while len(walls[0]) < least or (len(walls[0]) < most and time.monotonic() - begun < seconds):
            if len(walls[0]) > 1 and self.left() < RESERVE:
                break
            for number, run in enumerate(runs):
                self.sync()
                before = self._reset_peak()
                start = time.perf_counter()
                result = run()
                hosts[number].append(1e3 * (time.perf_counter() - start))
                self.sync()
                walls[number].append(1e3 * (time.perf_counter() - start))
                del result
                peaks[number] = max(peaks[number], self._peak() - before)
        return [
            {
                "ms": median(wall),
                "ms_low": min(wall),
                "ms_high": max(wall),
                "host_ms": median(host),
                "repeats": len(wall),
                "peak_mib": peak / 2**20 if self.cuda else None,
            }
            for wall, host, peak in zip(walls, hosts, peaks, strict=True)
        ]

    def _reset_peak(self) -> float:
        if not self.cuda:
            return 0.0
        self.torch.cuda.reset_peak_memory_stats()
        return float(self.torch.cuda.memory_allocated())

    def _peak(self) -> float:
        return float(self.torch.cuda.max_memory_allocated()) if self.cuda else 0.0

    def _launches(self, run: Callable[[], Any]) -> dict[str, Any]:
        """Counts kernels, copies and fills of one call, and where the host waited for the device."""
        if not self.cuda:
            return {"launches": None, "waits": None, "waits_at": {}}
        torch = self.torch
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            run()
            self.sync()
        events = profile.events()
        device = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
        launches = sum(1 for e in device if not getattr(e, "is_user_annotation", False) and "#" not in e.name)
        waits = sum(1 for e in events if e.name in _WAITS) - self.own_waits
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                run()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        places = collections.Counter(
            f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchronizing CUDA" in str(w.message)
        )
        self.sync()
        return {"launches": launches, "waits": max(waits, places.total()), "waits_at": dict(places)}

    def measure(self, section: str, cases: list["Case"]) -> None:
        """Measures a group of cases; a failure is recorded in its row and does not stop the other cases."""
        # Warm-up, profiling and comparisons take about as long as timing.
        if self.left() < RESERVE + 2 * sum(case.seconds for case in cases):
            self.report["skipped"] += [f"{case.name} ({case.backend})" for case in cases]
            return
        working, failed = [], {}
        for case in cases:
            try:
                if case.run is not None:
                    case.run()
                    self.sync()
                working.append(case)
            except Exception as error:
                failed[id(case)] = self._told(error)
                gc.collect()
        timed = [case for case in working if case.run is not None]
        seconds = sum(case.seconds for case in timed)
        times = self._time([case.run for case in timed if case.run], seconds) if timed else []
        measured = {id(case): one for case, one in zip(timed, times, strict=True)}
        for case in cases:
            row: dict[str, Any] = {"section": section, "name": case.name, "backend": case.backend}
            row |= measured.get(id(case), {})
            if id(case) in failed:
                row["failed"] = failed[id(case)]
            else:
                try:
                    row |= self._checked(case, row)
                except Exception as error:
                    row["failed"] = self._told(error)
            self.report["rows"].append(row)
            self.write()
            print(f"{_line(row)} | {self.left():.0f} s left", flush=True)
        gc.collect()
        if self.cuda:
            self.torch.cuda.empty_cache()

    def _told(self, error: Exception) -> str:
        traceback.print_exception(error, limit=-4)
        return f"{type(error).__name__}: {error}".splitlines()[0][:300]

    def _checked(self, case: "Case", row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns limit, launches, projected share and errors of a case, and the last check that failed."""
        more: dict[str, Any] = {}
        if case.run is not None:
            limits = self.report["limits"]
            if limits and (case.flops or case.bytes):
                products = case.flops / limits["tflops"] * 1e-9
                more["limit_ms"] = max(products, case.bytes / limits["terabytes_per_s"] * 1e-9)
                more["ratio"] = row["ms"] / more["limit_ms"]
            more |= self._launches(case.run)
        from harness import LEAST_PROJECTED

        if case.share is not None:
            share = case.share()
            share = more["projected_share"] = share if math.isfinite(share) else 0.0
            if share < LEAST_PROJECTED:
                more["failed"] = f"{100 * share:.3g} % of the tokens projected, must be at least 10 %"
        if case.exact is not None:
            errors = case.exact()
            more["errors"] = {
                name: [value if math.isfinite(value) else str(value), limit]
                for name, (value, limit) in errors.items()
            }
            for name, (value, limit) in errors.items():
                if limit is not None and not value <= limit:
                    more["failed"] = f"{name}: {value:.2e}, must be at most {limit:.0e}"
        return more

    def write(self) -> None:
        """Writes the results so far."""
        self.report["about"]["seconds"] = round(time.monotonic() - self.begun, 1)
        self.report["goals"] = self.goals(self.report["rows"])
        write_json(self.path, self.report)


def _line(row: Mapping[str, Any]) -> str:
    parts = [f"{row['name']:45s} {row['backend']:12s}"]
    if "ms" in row:
        parts.append(f"{row['ms']:9.3f} ms [{row['ms_low']:.3f}, {row['ms_high']:.3f}]")
    if "ratio" in row:
        parts.append(f"x {row['ratio']:.2f}")
    if row.get("launches") is not None:
        parts.append(
            f"{row['peak_mib']:.0f} MiB, {row['launches']} launches, {row['waits']} waits {row['waits_at']}"
        )
    if "projected_share" in row:
        parts.append(f"{100 * row['projected_share']:.1f} % projected")
    parts += [f"{name} {float(value):.1e}" for name, (value, _) in row.get("errors", {}).items()]
    return " ".join([*parts, f"FAILED {row['failed']}" if "failed" in row else ""])


def about(dry: bool, commit: str | None) -> dict[str, Any]:
    """Describes GPU, libraries and source."""
    import importlib.metadata

    import torch

    from troll.common.checkout import commit_of

    versions = {}
    for name in ("torch", "triton", "transformers", "trl"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "card": None if dry else torch.cuda.get_device_name(),
        "commit": commit or commit_of(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        **versions,
    }


def run(out: Path, budget: float, *, dry: bool = False, commit: str | None = None) -> list[str]:
    """Measures everything that fits into the budget.

    Args:
        out: directory for `DATA`.
        budget: time limit in seconds.
        dry: use tiny sizes on the CPU.
        commit: commit of the source, if it is not a git checkout.

    Returns:
        One line for each row that failed.

    Raises:
        UserError: there is no GPU.
    """
    import torch

    if not dry and not torch.cuda.is_available():
        raise UserError("no CUDA device; --dry runs everything on the CPU with tiny sizes")
    from dataclasses import asdict

    import gpu_cases
    from gpu_more_rows import SECTIONS, goals

    torch.manual_seed(0)
    sizes = gpu_cases.DRY if dry else gpu_cases.Sizes()
    told = about(dry, commit) | {
        "sizes": {name: str(value) if name == "dtype" else value for name, value in asdict(sizes).items()}
    }
    bench = Bench(out, budget, dry=dry, about=told)
    bench.goals = functools.partial(goals, sizes)
    bench.limits(sizes.dtype)
    bench.write()
    print(json.dumps(bench.report["about"] | bench.report["limits"]), flush=True)
    data = gpu_cases.Data(sizes)
    for section, groups in SECTIONS.items():
        if bench.left() < RESERVE:
            bench.report["skipped"].append(section)
            continue
        print(f"\n== {section} ({bench.left():.0f} s left)", flush=True)
        cases: list[Case] = []
        try:
            for cases in groups(sizes, data):
                bench.measure(section, cases)
        except Exception as error:
            row = {"section": section, "name": section, "backend": "", "failed": bench._told(error)}
            bench.report["rows"].append(row)
        del cases  # they hold models and batches
        gc.collect()
        if bench.cuda:
            torch.cuda.empty_cache()
        bench.write()
    if bench.report["skipped"]:
        print(f"no time for: {', '.join(bench.report['skipped'])}", flush=True)
    return [f"{r['name']} ({r['backend']}): {r['failed']}" for r in bench.report["rows"] if "failed" in r]


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"directory for {DATA}")
    parser.add_argument("--budget", type=float, default=420.0, help="time limit in seconds (default: 420)")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU, Triton interpreted")
    parser.add_argument("--commit", help="commit of the source, if it is not a git checkout")
    options = parser.parse_args()
    try:
        failures = run(options.out, options.budget, dry=options.dry, commit=options.commit)
    except UserError as error:
        failures = [str(error)]
    for failure in failures:
        print(f"error: gpu_check: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
