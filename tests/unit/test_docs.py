from __future__ import annotations

import dataclasses
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from orchestrator.cli.verbs import VERBS
from orchestrator.config import schema
from orchestrator.config.compose import composing
from orchestrator.config.multirun import expand

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("docs_reference", DOCS / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_key_of_every_schema_has_a_row(reference):
    page = reference.keys_page()
    for group, classes in reference._GROUPS.items():
        for one in classes:
            for key in dataclasses.fields(one):
                assert f"| `{group}.{key.name}` |" in page
    for key in ("recompute_granularity", "recompute_modules", "results_dir", "strict", "dry_run"):
        assert f"| `{key}` |" in page


def test_every_group_of_the_request_is_described(reference):
    groups = {one.name for one in dataclasses.fields(schema.Request) if one.name not in schema.RECOMPUTE_KEYS}
    assert groups - {"results_dir", "strict", "dry_run"} <= set(reference._GROUPS)


def test_what_a_schema_says_of_a_key_is_in_its_row(reference):
    assert re.search(r"`parallelism.layout`.*`pipeline_model_parallel_layout`", reference.keys_page())


def test_every_verb_has_its_help(reference):
    page = reference.verbs_page()
    for name in VERBS:
        assert f"\n## {name}\n" in page
        assert f"orchestrator {name}" in page


def test_the_api_is_described_member_by_member(reference):
    page = reference.api_page()
    for said in ("### Results.to_polars()", "### Results.lines\n", "pick(target_gb: float | None = None", "Raises:"):
        assert said in page


def test_rules_and_outcomes_are_listed(reference):
    assert "`core-attn-little-effect`" in reference.rules_page()
    page = reference.outcomes_page()
    assert "| `device_oom` | result |" in page
    assert "| `node_failure` | retry |" in page
    assert "- `OOM-bwd`: in `backward`, `replay`" in page


def commands():
    """Command lines of the pages that compose a configuration."""
    for page in sorted(DOCS.glob("*.md")):
        for line in page.read_text().splitlines():
            found = re.match(r"python -m orchestrator( -m)? (?P<rest>\S+=.*?)(\s+#.*)?$", line)
            if found:
                yield pytest.param(found["rest"], "-m" in line.split(), id=f"{page.stem}: {found['rest'][:50]}")


@pytest.mark.parametrize(("rest", "many"), list(commands()))
def test_commands_of_the_pages_compose(rest, many, tmp_path, monkeypatch):
    (tmp_path / "conf" / "cluster").mkdir(parents=True)
    (tmp_path / "conf" / "study").mkdir()
    text = (DOCS / "cluster.md").read_text()
    for name, kind in (("mine", "cluster"), ("moonlight", "study")):
        block = next(one for one in re.findall(r"```yaml\n(.*?)```", text, re.S) if f"conf/{kind}/{name}" in one)
        (tmp_path / "conf" / kind / f"{name}.yaml").write_text(block)
    monkeypatch.chdir(tmp_path)
    with composing() as composer:
        assert expand(shlex.split(rest), composer, many)


def test_verbs_that_pages_name_exist():
    for page in DOCS.glob("*.md"):
        for word in re.findall(r"python -m orchestrator ([a-z]+)\b(?!=)", page.read_text()):
            assert word in VERBS, f"{page.name}: {word}"


def test_every_relative_link_leads_to_a_file_of_the_repository():
    """The pages are read where they lie as well: what only the built site has cannot be linked to."""
    dead = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
            path, _, heading = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            leads = (page.parent / path).resolve() if path else page
            if not leads.exists() or (heading and leads.suffix == ".md" and heading not in _headings(leads)):
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert not dead


def _headings(page):
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
