"""What the rules ask about an experiment, without Snakemake: files, parameters, resources, environments."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from refusals import refused

from troll.experiment.experiment import COORDINATES, resolve, run_seeds
from troll.experiment.files import parse_experiment
from troll.experiment.run_config import RunConfig, SamplingConfig, SuitesConfig
from troll.operations import targets as module
from troll.operations.doctor import VLLM_ENVIRONMENT
from troll.operations.groups import Group, groups_of
from troll.operations.parameters import Parameters, environment_of
from troll.operations.places import one_of, places_of, task_of, verbatim
from troll.operations.public_data import PublicWork, skipped_parts
from troll.operations.targets import Targets
from troll.training.run import trainer_config

RUN = dict(zip((*COORDINATES, "seed"), ["tiny", "chains", "clip", "grpo", "stale", "0"], strict=True))
NAME = "tiny/chains/clip/grpo/stale/seed0"
PLACE = {"checkpoint_dir": f"runs/{NAME}"}
BASE = {"checkpoint_dir": "base/tiny/chains"}
ROOT = "results/reduced"


@pytest.fixture
def targets(reduced, monkeypatch, tmp_path):
    """Of the reduced experiment with other keys, in a directory without results."""
    monkeypatch.chdir(tmp_path)

    def make(skipped=(), **keys):
        return Targets(parse_experiment(reduced | keys, "x.yaml"), dict(skipped))

    return make


def test_names_and_places():
    assert one_of(["a.b", "c"]) == r"a\.b|c" and one_of([]) == "(?!)"
    assert verbatim("{a}") == "{{a}}"
    assert task_of(PLACE) == task_of(BASE) == "chains"


def test_every_run_and_base_model_is_made_and_graded_where_nothing_is_kept(targets):
    found = targets()
    assert len(found.runs) == 4 and found.bases == [("tiny", "chains"), ("tiny", "functions")]
    places = places_of(found.runs)
    assert len(places) == 6 and places[-1] == "base/tiny/functions"
    files = found.files_of(found.runs)
    assert sorted(files) == sorted(
        f"{ROOT}/{place}/{name}" for place in places for name in ("manifest.json", "grades.json")
    )
    assert found.stale_marks == [] and found.archived_runs == {}


def test_skipped_tasks_have_no_files_and_stand_in_the_plan(targets):
    found = targets({"functions": "no sandbox"})
    assert {run.task for run in found.runs} == {"chains"} == set(found.tasks)
    plan = found.plan_of(found.experiment.runs())
    assert len(plan["expected"]) == 4 and plan["skipped"] == {"functions": "no sandbox"}
    assert {row["rule"] for row in plan["expected"]} == {"clip", "troll"}
    assert set(plan["keys"]) == {"base/tiny/chains", *(run.run_id for run in found.runs)}


def test_what_the_tables_hold_is_not_made_again_unless_it_was_appended_here(targets, monkeypatch):
    found = targets(archive=True)
    monkeypatch.setattr(module, "reusable_runs", lambda *_: {NAME: "row", "base/tiny/chains": "row"})
    (path,) = (Path(found.mark_of(place)) for place in ["base/tiny/chains"])
    path.parent.mkdir(parents=True)
    path.touch()
    assert found.marked == {"base/tiny/chains"}
    assert f"runs/{NAME}" not in found.missing_places and len(found.missing_places) == 4
    here = found.local_places(found.runs)
    assert set(here) == {*found.missing_places, "base/tiny/chains"}
    assert found.files_of(found.runs) == [f"{ROOT}/{place}/appended" for place in here]
    assert Path(found.collected) in found.stale_marks and path not in found.stale_marks
    assert found.collect_options({}) == ["--archive results/reduced"]
    Path("results/released/reduced").mkdir(parents=True)
    assert "--released results/released/reduced" in found.collect_options({})
    assert targets(archive=True, repeat=True).collect_options({}) == ["--archive results/reduced"]


def test_groups_have_their_own_runs_and_say_where_none_can_be_made(targets):
    groups = [{"group": "sums", "tasks": ["chains"]}, {"group": "code", "tasks": ["functions"]}]
    found = targets({"functions": "no sandbox"}, matrix=groups)
    whole, sums, code = groups_of(found)
    assert sums.runs == found.groups["sums"] == found.runs
    assert sums.inputs({}) == whole.inputs({})
    with refused("group code"):
        code.inputs({})


def test_a_group_has_names_files_and_a_plan_of_its_own(targets):
    found = targets(matrix=[{}, {"group": "sums", "tasks": ["chains"]}], archive=True)
    whole, sums = groups_of(found)
    assert (whole.rule("report"), sums.rule("report")) == ("report", "report-sums")
    assert (whole.directory, sums.directory) == (ROOT, f"{ROOT}/groups/sums")
    assert sums.logs == f"{ROOT}/logs/groups/sums"
    assert whole.mark == [found.collected] and whole.tidy == [], "finished runs are kept in the table"
    assert sums.mark == sums.markdown == [] and sums.tidy == [f"{ROOT}/groups/sums/tidy/all.parquet"]
    assert len(said(sums.plan({}))["expected"]) == 2 < len(said(whole.plan({}))["expected"])
    assert "--command 'snakemake sums'" in sums.report_options({})
    assert f"--markdown {ROOT}/README.md" in whole.report_options({})


def test_tables_figures_and_measurements_follow_from_what_is_asked(targets):
    found = targets()
    group = Group(found)
    tables = [table.path for table in group.tables]
    assert f"{ROOT}/tables/main.csv" in tables and f"{ROOT}/tables/main.md" in group.tables_in_markdown
    assert not [path for path in tables if "ablation" in path]
    (figure,) = [figure for figure in group.figures if figure.path.endswith("/learning_chains.png")]
    assert figure.caption == "learning_figure" and figure.labels == {"figure": "Learning", "task": "chains"}
    assert {"--table main", "--figure final", "--figure learning:chains"} <= set(group.report_options({}))
    assert len(group.report_options({})) == len(tables) + len(group.figures) + 1
    assert found.measurements == []
    cost = {"tokens": 8, "widths": [4, 6], "repeats": 2, "step": {"shape": "tiny"}}
    asked = targets(cost=cost, approximation=True)
    assert asked.measurements == [
        f"{ROOT}/cost/cost.csv",
        f"{ROOT}/cost/cost_step.csv",
        f"{ROOT}/approximation/zipf/approximation.png",
        f"{ROOT}/approximation/task/chains/approximation.png",
        f"{ROOT}/approximation/task/functions/approximation.png",
    ]
    parameters = Parameters(asked)
    assert parameters.cost["widths"] == ["--width 4", "--width 6"] and parameters.cost["tokens"] == 8
    assert "--shape tiny" in parameters.step_sizes and Parameters(found).step_sizes == []
    assert asked.first_run_of("chains") == f"{ROOT}/runs/{NAME}"
    assert asked.base_of("chains") == f"{ROOT}/base/tiny/chains"


def test_claims_are_known_by_their_digests_and_may_have_braces_in_their_path(targets):
    Path("{mine}").mkdir()
    for path in ("{mine}/claims.yaml", "plain.yaml"):
        Path(path).write_text("[]\n")
    found = targets(claims=["{mine}/claims.yaml", "plain.yaml"])
    before = found.claims_digests
    assert len(before) == 2
    Path("{mine}/claims.yaml").write_text("[]")
    assert found.claims_digests[0] != before[0] and found.claims_digests[1] == before[1]
    assert found.claims_arguments({}) == ["'{mine}/claims.yaml'", "plain.yaml"]
    assert found.claims_options({})[1] == "--ledger plain.yaml"
    assert "--ledger plain.yaml" in found.collect_options({})
    assert targets().collect_options({}) == []


def said(path):
    """What a file of settings says; it lies where Snakemake keeps its own."""
    assert path.startswith(".snakemake/settings/")
    return json.loads(Path(path).read_text())


def test_settings_lie_in_a_file_for_each_that_is_written_once(targets):
    parameters = Parameters(targets())
    path = Path(parameters.run(RUN))
    before = path.stat().st_mtime_ns
    assert parameters.run(RUN) == str(path) and path.stat().st_mtime_ns == before
    other = parameters.run(RUN | {"trust_region": "troll"})
    assert other != str(path) and said(other)["trust_region"]["rule"] == "troll"
    assert len(list(path.parent.iterdir())) == 2


def test_a_job_is_repeated_when_what_defines_its_result_changes_and_not_else(targets):
    def parameters(**keys):
        found = Parameters(targets(**keys))
        return found.run(RUN), found.base_model({"model": "tiny", "task": "chains"}), found.problems(RUN)

    usual = parameters()
    assert said(usual[0])["run_id"] == NAME
    assert parameters(seeds=[0, 1], tracking="none", summary="other words") == usual
    rate = {"stale": {"learning_rate": 2.0e-3, "mini_batches": 2, "num_iterations": 2}}
    changed = parameters(conditions=rate)
    assert changed[0] != usual[0] and changed[1:] == usual[1:]


def test_thinking_reaches_training_validation_suites_and_evaluation(targets):
    tasks = {"chains": {"train": 32, "validation": 8, "test": 8, "evaluate_on": {"gsm8k": {"test": 4}}}}

    def written(**keys):
        parameters = Parameters(targets(tasks=tasks, **keys))
        places = (parameters.sampling(PLACE), parameters.sampling(BASE), parameters.suites(PLACE))
        found = (parameters.run(RUN), parameters.base_model({"model": "tiny", "task": "chains"}), *places)
        return [said(path) for path in found]

    modes = ("template", "on", True, "off", False)
    found = {str(mode): [item.get("thinking") for item in written(thinking=mode)] for mode in modes}
    assert found["template"] == ["template"] * 5
    assert found["on"] == found["True"] == ["on"] * 5, "YAML reads a bare `on` as true"
    # Left out where it is off, so that no run of an earlier configuration is made again.
    assert found["off"] == found["False"] == [None] * 5
    run, _, sampling, _, suites = written(thinking="template")
    assert SamplingConfig.model_validate(sampling).thinking == "template"
    assert SuitesConfig.model_validate(suites).thinking == "template"
    assert trainer_config(RunConfig.model_validate(run), Path("out")).chat_template_kwargs == {}
    run = RunConfig.model_validate(written()[0])
    assert trainer_config(run, Path("out")).chat_template_kwargs == {"enable_thinking": False}
    keys = [targets(tasks=tasks, thinking=mode).keys for mode in ("off", "template")]
    assert all(keys[0][place] != keys[1][place] for place in keys[0])


def test_parameters_are_those_of_the_place(targets):
    suites = {"gsm8k": {"test": 4, "samples": 1}}
    tasks = {"chains": {"train": 32, "validation": 8, "test": 8, "evaluate_on": suites}}
    found = targets(tasks=tasks, conditions={"stale": {"max_response_tokens": 30}})
    parameters = Parameters(found)
    of_run, of_base = said(parameters.sampling(PLACE)), said(parameters.sampling(BASE))
    assert of_run["max_tokens"] == of_base["max_tokens"] == 30
    assert of_run["seed"] == run_seeds(found.experiment.run(NAME)).evaluation
    assert of_base == of_run | {"seed": 0}
    largest = {"seed": 2**32 - 1}
    assert SamplingConfig.model_validate(of_run | largest).model_dump().items() >= largest.items()
    assert SuitesConfig.model_validate(said(parameters.suites(PLACE)) | largest).seed == largest["seed"]
    assert found.suite_problems(PLACE) == [f"{ROOT}/suites/gsm8k/test.jsonl"]
    assert said(parameters.suite_problems({"suite": "gsm8k"})) == {"name": "gsm8k", "test": 4}
    further = said(parameters.suites(PLACE))
    assert further.pop("suites") == {"gsm8k": {"samples": 1, "temperature": 0.0}}
    assert further.items() <= of_run.items() and "temperature" not in further
    assert found.grades(PLACE)[-1].endswith("/suites/graded.json")
    assert found.test_problems(PLACE) == f"{ROOT}/data/chains/test.jsonl"
    assert said(parameters.tokenizer({"model": "tiny"}))["vocabulary"] == 512
    assert resolve(found.experiment, found.experiment.run(NAME)).training.max_response_tokens == 30
    tasks["chains"]["validate_on"] = {"gsm8k": 4, "math500": "all"}
    validating = targets(tasks=tasks)
    assert validating.suites == {"gsm8k": 4, "math500": "all"}
    files = [f"{ROOT}/suites/{name}/test.jsonl" for name in ("gsm8k", "math500")]
    assert validating.validation_suites(RUN) == files and validating.suite_problems(PLACE) == files[:1]
    run = said(Parameters(validating).run(RUN))
    assert run.pop("validate_on") == tasks["chains"]["validate_on"]
    assert set(said(parameters.run(RUN))) == set(run), "a run that validates on nothing has another digest"
    skipping = Targets(found.experiment, {"gsm8k": "not here"})
    assert skipping.suite_problems(PLACE) == [] and len(skipping.grades(PLACE)) == 1


def test_what_jobs_ask_for_follows_model_and_gpus(targets, repository):
    asked = Parameters(targets())
    first = asked.training_request(RUN)
    assert (first.threads, first.gpus) == (1, 0)
    assert asked.training_request(RUN, 2).memory_mb > first.memory_mb
    assert asked.sampling_request(PLACE).gpus == asked.sampling_request(BASE).gpus == 0
    hub = yaml.safe_load((repository / "tests/workflow/hub.yaml").read_text())
    hub["training"] = hub["training"] | {"gpus": 2}
    found = Targets(parse_experiment(hub, "x"))
    run = found.runs[0]
    wildcards = vars(run) | {"seed": str(run.seed)}
    asked = Parameters(found)
    training = asked.training_request(wildcards)
    assert (training.gpus, training.minutes) == (2, 1440) and asked.base_request(wildcards).minutes > 0
    assert asked.sampling_request({"checkpoint_dir": f"runs/{run.run_id}"}).gpus == 1
    assert found.pretrained == [run.model] and found.scratch == [] and found.budgeted


@pytest.mark.parametrize(("billions", "budgeted"), [(0.001, False), (4.0, True), (None, True)])
def test_a_model_of_the_hub_has_a_budget_unless_it_is_known_to_be_small(repository, billions, budgeted):
    experiment = yaml.safe_load((repository / "tests/workflow/hub.yaml").read_text())
    experiment["models"]["plain"]["hub"]["billions"] = billions
    assert Targets(parse_experiment(experiment, "x")).budgeted == budgeted


def test_vllm_runs_in_its_own_environment_if_that_exists_and_nothing_else_is_deployed(targets):
    found = targets()
    assert not found.trains_with_vllm and not found.samples_with_vllm
    assert environment_of(False) == ("../../envs/train.yaml", "troll")
    assert environment_of(True) == ("../../envs/vllm.yaml", "troll")
    program = Path(VLLM_ENVIRONMENT, "bin/troll")
    program.parent.mkdir(parents=True)
    program.touch()
    assert environment_of(True)[1] == str(program)
    assert environment_of(True, deployed=True)[1] == environment_of(False)[1] == "troll"


def test_public_data_is_left_out_with_a_reason_or_planned(targets, repository, monkeypatch):
    data = yaml.safe_load((repository / "tests/workflow/public.yaml").read_text())["public_data"]
    assert skipped_parts(None) == {} and PublicWork(targets()).outputs == []
    found = targets(public_data=data)
    monkeypatch.delenv("TROLL_DATA_MIRROR", raising=False)
    skipped = skipped_parts(found.experiment.public_data)
    assert set(skipped) == {"audit", *data["benchmarks"]}
    left_out = PublicWork(found, skipped)
    assert left_out.answers == [] and left_out.outputs == [f"{ROOT}/public/benchmarks.csv"]
    work = PublicWork(found)
    assert work.outputs[-1] == f"{ROOT}/audit/audit.csv"
    assert len([label for label, _ in work.answers if label == "oracle"]) == len(data["benchmarks"])
    assert work.labelled[0].startswith("oracle=") and len(work.answer_files) == 2 * len(work.answers)
    name = data["benchmarks"][0]
    assert said(work.problems({"benchmark": name}))["name"] == name
    assert said(work.sampling({}))["cut_prompts"] is True


def test_code_is_skipped_where_nothing_can_be_confined(targets, monkeypatch):
    reason = (False, "bwrap: not found")
    monkeypatch.setattr("troll.tasks.sandbox.pool.sandbox_available", lambda: reason)
    assert module.skipped_tasks(targets().experiment) == {"functions": "bwrap: not found"}
    chains = SimpleNamespace(tasks={"chains": SimpleNamespace(evaluate_on={}, validate_on={})})
    assert module.skipped_tasks(chains) == {}
