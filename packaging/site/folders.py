"""Hooks of mkdocs: documents link to folders of the repository, which are no pages. Each folder that one links to gets a page that lists
it. And the page of the C headers leads to those that Doxygen made, which the repository does not have."""

import os
import posixpath
import re

from mkdocs.structure.files import File

_LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")


def on_files(files, config):
    root, linked = config["docs_dir"], set()
    for file in files.documentation_pages():
        folder = posixpath.dirname(file.src_uri)
        for link, _ in _LINK.findall(file.content_string):
            path = posixpath.normpath(posixpath.join(folder, link))
            if os.path.isdir(f"{root}/{path}"):
                linked.add(path)
    for path in sorted(linked):
        names = sorted(os.listdir(f"{root}/{path}"))
        if "README.md" not in names:
            rows = [f"- [{name}](<{name}>)" for name in names if not os.path.isdir(f"{root}/{path}/{name}")]
            folders = [f"- {name}/" for name in names if os.path.isdir(f"{root}/{path}/{name}")]
            files.append(File.generated(config, f"{path}/index.md", content="\n".join([f"# {path}/", "", *folders, *rows]) + "\n"))
    config["linked_folders"] = linked
    return files


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri == "docs/c_api.md" and files.get_file_from_path("c/index.html"):
        markdown += "\n[All of them as pages](../c/index.html)\n"

    def to_page(match):
        link, anchor = match[1], match[2] or ""
        path = posixpath.normpath(posixpath.join(folder, link))
        if path not in config["linked_folders"]:
            return match[0]
        page_of = "README.md" if files.get_file_from_path(f"{path}/README.md") else "index.md"
        return f"]({link.rstrip('/')}/{page_of}{anchor})"

    return _LINK.sub(to_page, markdown)
