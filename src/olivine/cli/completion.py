"""`olivine completion`: completion of commands, options and models in bash, zsh and fish.

The script that it prints calls `olivine` again at each Tab, with the variable `VARIABLE` set; click answers.
"""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

VARIABLE = "_OLIVINE_COMPLETE"  # as in main.py, which does not import this module for it
SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL (bash, zsh or fish) completes commands, options and models.

    \b
    olivine completion bash > ~/.local/share/bash-completion/completions/olivine
    olivine completion zsh > ~/.zfunc/_olivine
    olivine completion fish > ~/.config/fish/completions/olivine.fish

    zsh needs `fpath+=~/.zfunc` before `compinit` in ~/.zshrc. To try it in the shell at hand:

    \b
    eval "$(olivine completion bash)"
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "olivine", VARIABLE).source().rstrip())


def answer(cli: click.Command) -> None:
    """Answers a script's question, and exits. Nothing is said of mistakes: somebody is typing."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        status = shell_complete(cli, {}, "olivine", VARIABLE, os.environ[VARIABLE])
    except Exception:
        status = 1
    sys.exit(status)


class BashComplete(ShellComplete):
    """bash splits words at colons, which names of models have: it is asked for the line, and given the rest
    of the word after the colon. Old versions, as macOS has one, lack compopt and nosort."""

    name = "bash"
    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' type value files=
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            file|dir) files=$type ;;
        esac
    done < <(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    if [[ -n $files && ${#COMPREPLY[@]} -eq 0 ]]; then
        compopt -o default 2>/dev/null || COMPREPLY=($(compgen -f -- "$2"))
    elif [[ -n $files ]]; then
        COMPREPLY+=($(compgen -f -- "$2"))
    fi
}

complete -o nosort -F %(complete_func)s %(prog_name)s 2>/dev/null ||
    complete -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        typed = os.fsencode(os.environ["COMP_LINE"])[: int(os.environ["COMP_POINT"])]
        line = os.fsdecode(typed)
        words = split_arg_string(line)
        if not line or line[-1].isspace():
            words.append("")
        return words[1:-1], words[-1]

    def complete(self) -> str:
        args, incomplete = self.get_completion_args()
        done = 0
        if ":" in os.environ.get("COMP_WORDBREAKS", ":"):
            done = incomplete.rfind(":") + 1
        lines = []
        for item in self.get_completions(args, incomplete):
            if item.value.startswith(incomplete):
                item.value = item.value[done:]
            lines.append(self.format_completion(item))
        return "\n".join(lines)

    def format_completion(self, item: CompletionItem[str]) -> str:
        return f"{item.type},{item.value}"


add_completion_class(BashComplete)
