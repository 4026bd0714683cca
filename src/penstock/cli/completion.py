"""`penstock completion bash|zsh|fish|install`: a script that lets a shell complete command lines.

The scripts call `penstock __complete`, which is answered in `completing`. Owns the scripts, and
where a user has them.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import output
from penstock.cli.command import Env, command
from penstock.core.errors import ConfigError

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
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _penstock "$@"
else
    compdef _penstock penstock
fi
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


MARK: Final = "# Completion of penstock for "
"""In each script: a file with it is ours."""


class Shell(StrEnum):
    """The shells that have a script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


class ScriptChoice(StrEnum):
    """A script, or to have one where the shell finds it."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    install = "install"


def add_to(app: typer.Typer) -> None:
    command(app, "completion")(completion)


def completion(
    env: Env,
    wanted: Annotated[ScriptChoice, typer.Argument(metavar="bash|zsh|fish|install")],
    shell: Annotated[
        Shell | None,
        typer.Argument(metavar="[SHELL]", help="To install for. Default: that of $SHELL."),
    ] = None,
) -> None:
    """Print a script that completes commands, options and topics, for a shell to read; or install
    it for this user."""
    if wanted is not ScriptChoice.install:
        if shell is not None:
            raise ConfigError(f"say `penstock completion {wanted}`, or `install {shell}`")
        output.write_line(SCRIPTS[wanted.value].strip())
        return
    chosen = shell or _shell_of_user()
    path = _place_of(chosen)
    done = _write(path, SCRIPTS[chosen.value].strip() + "\n")
    env.say(f"{path} {done}")
    env.say(_next_step(chosen, path))


def _shell_of_user() -> Shell:
    name = os.path.basename(os.environ.get("SHELL", ""))
    try:
        return Shell(name)
    except ValueError:
        raise ConfigError(
            f"$SHELL is {name or 'not set'}: say which one of {', '.join(Shell)}, like "
            "`penstock completion install bash`"
        ) from None


def _place_of(shell: Shell) -> Path:
    """Returns the folder where that shell looks for its user's own completions."""
    try:
        home = Path.home()
    except RuntimeError as error:
        raise ConfigError(f"there is no home folder to write to ({error}): set $HOME") from error
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    match shell:
        case Shell.bash:
            own = os.environ.get("BASH_COMPLETION_USER_DIR")
            return Path(own or data / "bash-completion") / "completions" / "penstock"
        case Shell.zsh:
            return data / "zsh" / "site-functions" / "_penstock"
        case Shell.fish:
            config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
            return config / "fish" / "completions" / "penstock.fish"


def _write(path: Path, text: str) -> str:
    """Writes this text there; returns what was done, in words. Raises `ConfigError` for a file of
    others."""
    try:
        before = path.read_text("utf-8", "replace") if path.exists() else None
        if before == text:
            return "is there already"
        if before is not None and MARK not in before:
            raise ConfigError(f"{path} is not ours: move it away first")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            fresh.write_text(text, "utf-8")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    return "is written" if before is None else "is renewed"


def _next_step(shell: Shell, path: Path) -> str:
    match shell:
        case Shell.bash:
            return "a new shell has it, where the package bash-completion is installed"
        case Shell.zsh:
            return (
                f"a new shell has it, where ~/.zshrc says before compinit: fpath=({path.parent} "
                "$fpath)"
            )
        case Shell.fish:
            return "a new shell has it"
