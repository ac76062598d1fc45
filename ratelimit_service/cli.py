"""The command line: `ratelimit VERB`. Each verb is a module of `commands/`."""

import signal
from difflib import get_close_matches
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click
from click.shell_completion import CompletionItem

from ratelimit_service import __version__
from ratelimit_service.commands.terminal import echo, shown
from ratelimit_service.errors import RateLimitError, SettingsError, UnreachableError

VERBS = (
    "serve",
    "init",
    "check",
    "diff",
    "rules",
    "explain",
    "status",
    "top",
    "call",
    "load",
    "simulate",
    "try",
    "counters",
    "ban",
    "unban",
    "bans",
    "hash",
    "schema",
    "completion",
)
"""The verbs, in the order of the help. A verb's module is imported when it is needed, so that `--help` is quick."""


class Verbs(click.Group):
    """The verbs, each `command` in its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's `command`; None makes click say that there is no such verb."""
        if cmd_name not in VERBS:
            return None
        if cmd_name == "serve":
            # The import takes half a second, in which SIGHUP would end the process. It can be ignored: no rules are
            # loaded yet.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"ratelimit_service.commands.{module}").command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs that begin so, without their help texts: to import all of them takes most of a second."""
        verbs = [CompletionItem(verb) for verb in VERBS if verb.startswith(incomplete)]
        return verbs or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that the arguments begin with; a misspelt one is a usage error that suggests the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], VERBS, 1)
            raise click.UsageError(f"{error.message}{f' Did you mean {near[0]}?' if near else ''}", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; errors that it raises on purpose are printed in one line each, without a traceback."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            lines = error.format_message().expandtabs(2).split("\n")  # they quote arguments, such as names of files
            message = "\n".join(shown(line, err=True) for line in lines)
            error.format_message = lambda: message  # type: ignore[method-assign]  # click's classes format it anew
            raise
        except SettingsError as error:
            for problem in error.problems:
                echo(f"ratelimit: {problem}", err=True)
            ctx.exit(2)
        except RateLimitError as error:
            echo(*f"ratelimit: {error}".split("\n"), err=True)
            ctx.exit(3 if isinstance(error, UnreachableError) else 1)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ratelimit")
def main() -> None:
    """A rate-limit service that speaks Envoy's protocol."""
