"""A hook of mkdocs: pages made from the code at each build, so that they cannot fall behind it.

The keys come from the schemas, the verbs from their parsers, the rules from the registries of rules, outcomes from the
vocabulary; the notebook's page is its cells.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestrator import api
from orchestrator.cli import main
from orchestrator.cli.verbs import VERBS
from orchestrator.config import schema
from orchestrator.vocabulary import Cause, Stage, consequence_of, label_of

HERE = Path(__file__).parent
PROGRAM = "python -m orchestrator"

_GROUPS = {
    "model": (schema.Model,),
    "parallelism": (schema.Parallelism,),
    "precision": (schema.Precision,),
    "training": (schema.Training,),
    "trainer": (schema.McoreCpuTrainer, schema.BridgeTrainer),
    "cluster": (schema.LocalCluster, schema.SlurmCluster),
    "cluster.container": (schema.Container,),
    "revisions": (schema.Revisions,),
    "study": (schema.Study,),
    "store": (schema.Store,),
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those of the folder."""
    from mkdocs.structure.files import File

    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def keys_page() -> str:
    """Every key of the configuration."""
    lines = [
        "# Configuration keys",
        "",
        f"`{PROGRAM} --cfg job` prints the whole configuration of a command, `--info defaults` where it comes from. ",
        "A key is set as `GROUP.KEY=VALUE`; `GROUP=FILE` takes a file of `conf/GROUP`, yours in `./conf` first. "
        "What has no default is passed on only where you set it: the framework's own default holds. Where `recipe` is "
        "allowed, the word leaves a setting as the recipe has it.",
        "",
        "## Top level",
        "",
        *_table(schema.Request, "", leave_out=set(_GROUPS)),
    ]
    for group, classes in _GROUPS.items():
        lines += ["", f"## {group}", ""]
        files = sorted(path.stem for path in (HERE.parent / "conf" / group).glob("*.yaml"))
        if files:
            lines += ["Files: " + ", ".join(f"`{group}={name}`" for name in files) + ".", ""]
        for one in classes:
            if len(classes) > 1:
                lines += [f"### {group}: {_words(one.__name__)}", ""]
            lines += [*_prose(inspect.getdoc(one) or ""), "", *_table(one, f"{group}."), ""]
    return "\n".join(lines) + "\n"


def verbs_page() -> str:
    """Every verb with its options, as `-h` prints them."""
    lines = [
        "# Verbs",
        "",
        f"`{PROGRAM} VERB -h` prints the same. Exit codes: 0 ok, 1 the environment failed, 2 wrong usage or "
        "configuration, 3 asked and nothing qualifies.",
        "",
        "## Running a study",
        "",
        "```text",
        _help_of_runs(),
        "```",
    ]
    for name, verb in VERBS.items():
        lines += [
            "",
            f"## {name}",
            "",
            f"{verb.summary[0].upper()}{verb.summary[1:]}.",
            "",
            "```text",
            _help(name),
            "```",
        ]
    return "\n".join(lines) + "\n"


def rules_page() -> str:
    """Every rule that refuses or warns before a run, and every rule of diagnosis after one."""
    from orchestrator.analysis.failure_rules import FAILURE_TABLE
    from orchestrator.analysis.further_rules import FURTHER_RULES
    from orchestrator.plan.rules import RULES

    lines = ["# Rules", "", "## Before a run", "", "`dry_run=true` shows what they say of a candidate. "]
    lines += ["`strict=true` turns warnings into rejections.", "", "| rule | kind | source |", "|---|---|---|"]
    lines += [f"| `{rule.id}` | {_cell(str(rule.kind.value))} | {_cell(rule.source)} |" for rule in RULES]
    lines += [
        "",
        "## After a run",
        "",
        f"`{PROGRAM} diagnose STUDY` applies them.",
        "",
        "| rule | source |",
        "|---|---|",
    ]
    lines += [f"| `{rule.id}` | {_cell(rule.source)} |" for rule in (*FAILURE_TABLE, *FURTHER_RULES)]
    return "\n".join(lines) + "\n"


def outcomes_page() -> str:
    """Labels, causes and stages."""
    lines = [
        "# Labels, causes and stages",
        "",
        "The **label** is the outcome that a person reads, the **cause** why a trial stopped, the **stage** where a "
        "rank was. A result is kept; a retry gets another attempt; a fix waits for you.",
        "",
        "## Labels",
        "",
        "`pass`, `rejected`, `failed:CAUSE`, and where memory ran out:",
        "",
        *_oom_labels(),
        "",
        "## Causes",
        "",
        "| cause | what follows |",
        "|---|---|",
        *(f"| `{cause}` | {consequence_of(cause).value} |" for cause in Cause),
        "",
        "## Stages",
        "",
        "In the order of a run: "
        + ", ".join(f"`{stage.value}`" for stage in sorted(Stage, key=lambda one: one.code))
        + ".",
    ]
    return "\n".join(lines) + "\n"


def notebook_page() -> str:
    """The cells of the notebook."""
    cells = json.loads((HERE / "notebook.ipynb").read_text())["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join([*parts, "[The notebook itself](notebook.ipynb) runs in this project's tests."]) + "\n"


def api_page() -> str:
    """The Python API, from its own docstrings."""
    lines = ["# Python API", "", *_prose(inspect.getdoc(api) or ""), ""]
    for name, made in (("connect", api.connect), ("Database", api.Database), ("Results", api.Results)):
        lines += [f"## {name}", "", *_described(name, made), ""]
        for member, value in vars(made).items() if inspect.isclass(made) else ():
            shown = value.fget if isinstance(value, property) else value
            if not member.startswith("_") and inspect.isfunction(shown):
                called = member if isinstance(value, property) else f"{member}()"
                lines += [f"### {name}.{called}", "", *_described(member, shown, is_property=called == member), ""]
    return "\n".join(lines) + "\n"


def _described(name: str, made: Any, *, is_property: bool = False) -> list[str]:
    said = (inspect.getdoc(made) or "").splitlines()
    if inspect.isclass(made) or is_property:
        return said
    signature = str(inspect.signature(made)).replace("self, ", "").replace("(self)", "()").replace("'", "")
    return ["```python", f"{name}{signature}", "```", "", *said]


PAGES: dict[str, Callable[[], str]] = {
    "reference/keys.md": keys_page,
    "reference/verbs.md": verbs_page,
    "reference/rules.md": rules_page,
    "reference/outcomes.md": outcomes_page,
    "reference/api.md": api_page,
    "notebook.md": notebook_page,
}


def _table(kind: type, prefix: str, leave_out: set[str] | frozenset[str] = frozenset()) -> Iterator[str]:
    documented = _field_docs(kind)
    yield "| key | type | default | |"
    yield "|---|---|---|---|"
    for one in dataclasses.fields(kind):
        if one.name not in leave_out:
            said = _cell(" ".join(documented.get(one.name, "").split()))
            yield f"| `{prefix}{one.name}` | `{_cell(str(one.type))}` | {_default(one)} | {said} |"


def _field_docs(kind: type) -> dict[str, str]:
    """The string below each field."""
    (made,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(made, ast.ClassDef)
    found = {}
    for before, after in zip(made.body, made.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[before.target.id] = str(after.value.value)
    return found


def _default(one: dataclasses.Field[Any]) -> str:
    if one.default_factory is not dataclasses.MISSING:
        made = one.default_factory()
        return "" if dataclasses.is_dataclass(made) else f"`{json.dumps(made)}`"
    if one.default is dataclasses.MISSING or one.default == schema.UNSET:
        return ""
    return f"`{json.dumps(one.default)}`"


def _help(verb: str) -> str:
    module: ModuleType = importlib.import_module(VERBS[verb].module)
    parser = argparse.ArgumentParser(prog=PROGRAM, add_help=False)
    subparsers = parser.add_subparsers(dest="verb")
    module.add_parser(subparsers)
    chosen: argparse.ArgumentParser = subparsers.choices[verb]
    main.add_common_flags(chosen)
    return chosen.format_help().rstrip()


def _help_of_runs() -> str:
    return main.help_text()


def _oom_labels() -> Iterator[str]:
    stages: dict[str, list[str]] = {}
    for stage in sorted(Stage, key=lambda one: one.code):
        stages.setdefault(label_of(stage, Cause.DEVICE_OOM), []).append(f"`{stage}`")
    for label, where in stages.items():
        yield f"- `{label}`: in {', '.join(where)}"


def _prose(text: str) -> list[str]:
    return text.splitlines()


def _words(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
