"""The pages of the site that `make docs` builds.

They are the Markdown files of the repository, each at its own path, so that a link works in both,
and a page of reference for each module that users import.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[1]
# A link to a file that none of these patterns matches fails the build.
PUBLISHED = ("README.md", "C*.md", "LICENSE", "sweeps/*.md", "sweeps/*.yaml", "sweeps/**/*.png")
PUBLISHED += ("docs/**/*.md", "docs/**/*.png", "docs/*.css", "docs/examples/**/*.*")
PACKAGES = ("model", "model/routing", "data", "shards", "statistics")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the sections Answers and Reference of the navigation."""
    answers = sorted(path.with_suffix(".md") for path in REPOSITORY.glob("sweeps/*.yaml"))
    pages = [{path.stem: f"sweeps/{path.name}"} for path in answers if path.exists()]
    for section in config.nav or []:
        section.get("Answers", []).extend(pages)
        for package in PACKAGES if "Reference" in section else ():
            modules = [{module: _name_page(module)} for module in _list_modules(package)]
            section["Reference"].append({package.replace("/", "."): modules})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the repository, and add the pages of reference."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    for path in sorted({path for pattern in PUBLISHED for path in REPOSITORY.glob(pattern)}):
        name = path.relative_to(REPOSITORY).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for module in (module for package in PACKAGES for module in _list_modules(package)):
        content = f"# {module}\n\n::: capsweep.{module}\n"
        files.append(File.generated(config, _name_page(module), content=content))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep each number of an answer's table on one line, and give the table the room of a menu."""
    if not page.file.src_uri.startswith("sweeps/"):
        return html
    page.meta["hide"] = ["toc"]
    return f'<div class="numbers">{html}</div>'


def _list_modules(package: str) -> list[str]:
    """Return the modules of a package that users import, without the name capsweep."""
    source = REPOSITORY / "src/capsweep"
    paths = sorted((source / package).glob("*.py"))
    parts = [path.relative_to(source).with_suffix("").parts for path in paths]
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts]


def _name_page(module: str) -> str:
    return f"reference/{module.replace('.', '/')}.md"
