"""Follows the links of built pages: python3 packaging/site/html_links.py build/site/html. Prints those that lead to no file, or to no place in
a page of ours, and exits with 1 if there are any. mkdocs sees links in Markdown alone, not those of Doxygen's pages and of HTML."""

import html.parser
import os
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.places = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places.update(x for x in (given.get("id"), given.get("name")) if x)
        for name in ("href", "src"):
            if given.get(name):
                self.links.add(given[name])


def main(root):
    pages, missing, followed = {}, [], 0
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".html"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8", errors="replace") as file:
                    pages[os.path.normpath(path)] = Page(file.read())
    for path, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc or link.startswith("#__"):
                continue
            to = os.path.join(root, url.path[1:]) if url.path.startswith("/") else os.path.join(os.path.dirname(path), url.path)
            to = os.path.normpath(path if not url.path else urllib.parse.unquote(to))
            to = os.path.join(to, "index.html") if os.path.isdir(to) else to
            place = urllib.parse.unquote(url.fragment)
            followed += 1
            if not os.path.exists(to) or (place and to in pages and place not in pages[to].places):
                missing.append(f"{os.path.relpath(path, root)}: {link}")
    print(*sorted(missing), f"{len(pages)} pages, {followed} links, {len(missing)} of them lead nowhere", sep="\n")
    return 1 if missing or not followed else 0


if __name__ == "__main__":
    sys.exit(main(os.path.normpath(sys.argv[1])))
