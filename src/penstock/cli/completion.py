"""`penstock completion bash|zsh|fish`: a script that lets a shell complete command lines.

The scripts call `penstock __complete`, which is answered in `completing`. Owns the scripts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from penstock.cli import output
from penstock.cli.command import Env, command

BASH: Final = r"""
# Completion of penstock for bash: eval "$(penstock completion bash)", or write this into
# ~/.local/share/bash-completion/completions/penstock
_penstock() {
    local word mode
    COMPREPLY=()
    { read -r mode
      while IFS=$'\t' read -r word _; do COMPREPLY+=("$word"); done
    } < <("${COMP_WORDS[0]}" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    [[ $mode == files ]] && compopt -o default
    return 0
}
complete -F _penstock penstock
"""
ZSH: Final = r"""
#compdef penstock
# Completion of penstock for zsh: eval "$(penstock completion zsh)", or write this into a file
# _penstock in a folder of $fpath
_penstock() {
    local mode word about
    local -a found
    { read -r mode
      while IFS=$'\t' read -r word about; do
          found+=("${word//:/\\:}${about:+:$about}")
      done
    } < <("${words[1]}" __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)
    if [[ $mode == files ]]; then _files; else _describe penstock found; fi
}
compdef _penstock penstock
"""
FISH: Final = r"""
# Completion of penstock for fish: penstock completion fish | source, or write this into
# ~/.config/fish/completions/penstock.fish
function __penstock
    set -l words (commandline -opc)
    set -l found ($words[1] __complete fish $words[2..-1] (commandline -ct) 2>/dev/null)
    if test "$found[1]" = files
        __fish_complete_path (commandline -ct)
    else
        string join \n -- $found[2..-1]
    end
end
complete -c penstock -f -a '(__penstock)'
"""
SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


class Shell(StrEnum):
    """What there is a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def add_to(app: typer.Typer) -> None:
    command(app, "completion")(completion)


def completion(env: Env, shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish")]) -> None:
    """Print a script that completes commands, options and topics, for a shell to read."""
    output.write_line(SCRIPTS[shell.value].strip())
