"""Which skills there are, whose counts where two have the same name, and what is never followed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.skills.skill_crib import SkillProject, skill_text
from toolcrib.skills.catalog import find_in

Make = Callable[..., SkillProject]


async def names(crib: SkillProject) -> dict[str, str]:
    return {one["name"]: one["source"] for one in (await crib.said("skills_list"))["skills"]}


async def test_skills_come_from_all_folders(make_crib: Make, tmp_path: Path) -> None:
    """The user's folder, those of the settings, the three of the project, up to its root, and the bundled ones."""
    crib = make_crib(f"skills: {{folders: [{tmp_path}/more]}}\n")
    crib.write(crib.skills / "one", skill_text("one"))
    crib.write(tmp_path / "more" / "two", skill_text("two"))
    for at, folder in enumerate((".toolcrib/skills", ".agents/skills", ".claude/skills")):
        crib.write(crib.project / folder / f"p{at}", skill_text(f"p{at}"))
    found = await names(crib)
    assert found["one"] == "user"
    assert found["two"] == "folder"
    assert [found[f"p{at}"] for at in range(3)] == ["project"] * 3
    assert found["writing-skills"] == "bundled"


async def test_project_skills_are_found_up_to_the_root_of_the_repository_and_not_beyond(crib: SkillProject) -> None:
    """What lies above the repository is somebody else's."""
    crib.write(crib.project / ".agents/skills/inside", skill_text("inside"))
    crib.write(crib.root / ".agents/skills/outside", skill_text("outside"))
    deep = crib.project / "src" / "deep"
    deep.mkdir(parents=True)
    result = await crib.runtime.call("skills_list", {}, ctx=crib.runtime.context(cwd=str(deep)))
    assert "inside" in result.text
    assert "outside" not in result.text


async def test_settings_switch_sources_and_single_skills_off(make_crib: Make) -> None:
    """`skills.project`, `skills.bundled` and `skills.disabled` are kept to."""
    crib = make_crib("skills: {bundled: false, project: false, disabled: [one]}\n")
    crib.write(crib.skills / "one", skill_text("one"))
    crib.write(crib.skills / "two", skill_text("two"))
    crib.write(crib.project / ".agents/skills/three", skill_text("three"))
    assert await names(crib) == {"two": "user"}
    assert "unknown skill 'one'" in await crib.refused("skill_view", name="one")


async def test_a_project_never_replaces_a_skill_of_the_user_or_a_bundled_one(make_crib: Make) -> None:
    """The hidden one is named, so that nobody wonders."""
    crib = make_crib("")
    crib.write(crib.skills / "brew", skill_text("brew", body="Mine."))
    crib.write(crib.project / ".agents/skills/brew", skill_text("brew", body="Evil."))
    crib.write(crib.project / ".agents/skills/writing-skills", skill_text("writing-skills", body="Evil."))
    listed = await crib.said("skills_list")
    assert [line.split(":")[0] for line in listed["hidden"]] == ["brew (project)", "writing-skills (project)"]
    assert (await crib.said("skill_view", name="brew"))["content"] == "Mine."
    assert "Evil." not in (await crib.said("skill_view", name="writing-skills"))["content"]


async def test_the_user_replaces_a_bundled_skill(make_crib: Make) -> None:
    """What the user wrote himself comes before everything else."""
    crib = make_crib("")
    crib.write(crib.skills / "writing-skills", skill_text("writing-skills", body="Mine."))
    assert (await crib.said("skill_view", name="writing-skills"))["content"] == "Mine."


async def test_categories_are_folders(crib: SkillProject) -> None:
    """`CATEGORY/NAME/SKILL.md`, also nested, is listed by category and opened by either name."""
    crib.write(crib.skills / "dev/review", skill_text("review"))
    crib.write(crib.skills / "dev/deep/lint", skill_text("lint"))
    crib.write(crib.skills / "home/brew", skill_text("brew"))
    listed = await crib.said("skills_list", category="dev")
    assert [(one["name"], one["category"]) for one in listed["skills"]] == [("review", "dev"), ("lint", "dev/deep")]
    assert listed["categories"] == ["dev", "dev/deep", "home"]
    assert (await crib.said("skill_view", name="dev/review"))["name"] == "review"
    assert "the categories are: dev, dev/deep, home" in await crib.refused("skills_list", category="dve")


async def test_what_others_wrote_is_read_leniently(crib: SkillProject) -> None:
    """A head that is no YAML, none at all, unknown fields, odd line ends and names: the skill is there all the same."""
    crib.write(crib.skills / "colon", "---\nname: colon\ndescription: Use: when it rains\n---\nBody\n")
    crib.write(crib.skills / "bare", "# Just text\n\nMore\n")
    crib.write(crib.skills / "windows", "\ufeff---\r\nname: windows\r\ndescription: 'Quoted'\r\n---\r\nBody\r\n")
    folded = (
        "---\nname: folded\ndescription: >\n  two\n  lines\nversion: 1.2\nmetadata:\n  hermes: {tags: [a]}\n---\nBody\n"
    )
    crib.write(crib.skills / "folded", folded)
    crib.write(crib.skills / "Odd_Name", skill_text("Odd_Name"))
    described = {one["name"]: one["description"] for one in (await crib.said("skills_list"))["skills"]}
    assert described == {
        "colon": "Use: when it rains",
        "bare": "Just text",
        "windows": "Quoted",
        "folded": "two lines",
        "Odd_Name": "What it is for.",
    }
    assert (await crib.said("skill_view", name="folded"))["version"] == "1.2"


async def test_links_out_of_a_project_are_not_followed(crib: SkillProject) -> None:
    """A repository cannot show files of the machine as its skills; links inside it are fine."""
    crib.write(crib.root / "secret/stolen", skill_text("stolen"))
    crib.write(crib.project / "tools/good", skill_text("good"))
    folder = crib.project / ".agents/skills"
    folder.mkdir(parents=True)
    (folder / "stolen").symlink_to(crib.root / "secret/stolen")
    (folder / "good").symlink_to(crib.project / "tools/good")
    (crib.project / ".claude").mkdir()
    (crib.project / ".claude/skills").symlink_to(crib.root / "secret")
    crib.write(folder / "text", "x")
    (folder / "text/SKILL.md").unlink()
    (folder / "text/SKILL.md").symlink_to(crib.root / "secret/stolen/SKILL.md")
    assert await names(crib) == {"good": "project"}


async def test_the_user_may_link_to_his_skills(crib: SkillProject) -> None:
    """Many keep their skills in a repository of their own; such a skill is read, and changed only there."""
    crib.write(crib.root / "dotfiles/brew", skill_text("brew"))
    crib.skills.mkdir()
    (crib.skills / "brew").symlink_to(crib.root / "dotfiles/brew")
    assert (await crib.said("skill_view", name="brew"))["content"] == "Do it."
    assert "is a link to" in await crib.refused("skill_manage", action="delete", name="brew")


def test_loops_deep_trees_and_fifos_do_not_hold_the_search_up(tmp_path: Path) -> None:
    """A search ends whatever the folder holds."""
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop/again").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    deep = tmp_path / "a/b/c/d/e/f/g"
    deep.mkdir(parents=True)
    (deep / "SKILL.md").write_text(skill_text("deep"))
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/SKILL.md")
    (tmp_path / "node_modules/x").mkdir(parents=True)
    (tmp_path / "node_modules/x/SKILL.md").write_text(skill_text("x"))
    found = list(find_in(tmp_path, "user"))
    assert [(skill.name, bool(skill.problem)) for skill in found] == [("pipe", True)]


async def test_plugins_offer_skills(make_crib: Make, tmp_path: Path) -> None:
    """What a plugin registers is there under `plugin:name`, as a file or as a folder."""
    plugin = tmp_path / "crib/plugins/kitchen"
    (plugin / "skills/baking/references").mkdir(parents=True)
    (plugin / "plugin.yaml").write_text("name: kitchen\nversion: 1.0.0\ndescription: Food\n")
    (plugin / "__init__.py").write_text(
        "def register(ctx):\n"
        "    ctx.register_skill('cooking', 'skills/cooking.md', 'Cook well.')\n"
        "    ctx.register_skill('baking', path=__file__.replace('__init__.py', 'skills/baking'))\n"
        "    ctx.register_skill('gone', 'skills/gone.md')\n"
    )
    (plugin / "skills/cooking.md").write_text("# Cooking\n\nBoil.\n")
    (plugin / "skills/baking/SKILL.md").write_text(skill_text("baking", "Bake well."))
    (plugin / "skills/baking/references/oven.md").write_text("Hot.")
    crib = make_crib("plugins: {enabled: [kitchen]}\nskills: {bundled: false}\n")
    crib.runtime.load()
    listed = {one["name"]: one["description"] for one in (await crib.said("skills_list"))["skills"]}
    assert listed == {"kitchen:baking": "Bake well.", "kitchen:cooking": "Cook well."}
    assert (await crib.said("skill_view", name="kitchen:cooking"))["content"].startswith("# Cooking")
    oven = await crib.said("skill_view", name="kitchen:baking", file_path="references/oven.md")
    assert oven["content"] == "Hot."
    assert "no further files" in await crib.refused("skill_view", name="kitchen:cooking", file_path="oven.md")
