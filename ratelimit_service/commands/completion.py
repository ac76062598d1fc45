"""`ratelimit completion`: the script by which a shell completes commands, options and files."""

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(
    short_help="Print the script by which a shell completes commands.",
    epilog="""\b
For every new shell, once:
  echo 'eval "$(ratelimit completion bash)"' >> ~/.bashrc
  echo 'eval "$(ratelimit completion zsh)"' >> ~/.zshrc             (below compinit)
  ratelimit completion fish > ~/.config/fish/completions/ratelimit.fish

\b
Examples:
  ratelimit completion bash
  ratelimit completion zsh
  ratelimit completion fish""",
)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def command(ctx: click.Context, *, shell: str) -> None:
    """Print the script by which a shell completes commands, their options, and the names of files.

    The shell runs `ratelimit` at each press of the tab key. It needs bash 4.4 or newer, or any zsh or fish.
    """
    group = ctx.find_root().command
    complete = _SHELLS[shell](group, {}, "ratelimit", "_RATELIMIT_COMPLETE")
    # Not source(): for bash that starts one, to look at its version.
    click.echo(complete.source_template % complete.source_vars())
