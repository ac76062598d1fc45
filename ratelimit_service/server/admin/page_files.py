"""The page at `/` and the files that it loads, served from memory."""

import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Final

from aiohttp import web

from ratelimit_service.server.admin.json_api import HEADERS

PATH: Final = "/page/{digest}/{name}"
"""The path of each file but the page itself. The digest is of all files: those of two versions never meet in one
page."""

_TYPES: Final = {"css": "text/css", "html": "text/html", "js": "text/javascript"}
_INDEX: Final = "index.html"

_FOR_THE_PAGE: Final = HEADERS | {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}
# Only the browser keeps them: the port may need a token.
_FOR_ITS_FILES: Final = HEADERS | {"Cache-Control": "private, max-age=31536000, immutable"}


class PageFiles:
    """The files of the folder `page`, read once."""

    def __init__(self) -> None:
        folder = resources.files(__package__).joinpath("page")
        self._files: Mapping[str, bytes] = {
            file.name: file.read_bytes() for file in sorted(folder.iterdir(), key=lambda file: file.name)
        }
        digest = hashlib.sha256()
        for name, content in self._files.items():
            digest.update(f"{name} {len(content)}\n".encode() + content)
        self._digest = digest.hexdigest()[:16]
        self._page = self._files[_INDEX].replace(b"{digest}", self._digest.encode())

    async def page(self, _: web.Request) -> web.Response:
        """Respond with the page."""
        return _response(_INDEX, self._page, _FOR_THE_PAGE)

    async def file(self, request: web.Request) -> web.Response:
        """Respond with a file of this version; 404 if it is another's."""
        name = request.match_info["name"]
        if request.match_info["digest"] != self._digest or name not in self._files or name == _INDEX:
            raise web.HTTPNotFound
        return _response(name, self._files[name], _FOR_ITS_FILES)


def _response(name: str, content: bytes, headers: Mapping[str, str]) -> web.Response:
    return web.Response(body=content, headers=headers, content_type=_TYPES[name.rpartition(".")[2]], charset="utf-8")
