"""``attncheck completion bash|zsh|fish``: what a shell completes, written once, so that nothing of attncheck runs while somebody types."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ... import catalogue
from ..core.contract import contracts
from ..core.target import CannotRun
from ..search.find_target import Builtins

SHELLS = ("bash", "zsh", "fish")
ROOT = "_shtab_attncheck"  # as shtab begins the names of its functions
# A target stands in the place of a word; shtab knows either the one or the other. Here is what lets it be both: built-ins and files.
BASH = f"{ROOT}_pos_0_choices+=({{names}})\n{ROOT}_pos_0_COMPGEN=_shtab_compgen_files\n"
ZSH = f"""functions[{ROOT}_words]=$functions[{ROOT}_commands]
{ROOT}_commands() {{{{
  {ROOT}_words
  compadd {{names}}
  _files
}}}}
"""
ZSH_REST = f"        *) _arguments -C -s ${ROOT}_options ;;\n      esac\n"  # after a target, the options
FISH = f"complete -c attncheck -n \"{ROOT}_using ''; and test \\${ROOT}_npos -eq 0\" -Fa '{{names}}'\n"


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="attncheck completion",
        description="Print what lets a shell complete words, options, properties and built-ins.",
        epilog="bash: source <(attncheck completion bash), in ~/.bashrc; zsh: into a file _attncheck on $fpath; "
        "fish: into ~/.config/fish/completions/attncheck.fish",
    )
    parser.add_argument("shell", choices=SHELLS)
    return parser


def main(arguments: Sequence[str], root: argparse.ArgumentParser, words: Mapping[str, argparse.ArgumentParser]) -> int:
    """Print the script for a command of these options, or of one of these words with options of its own. Raises CannotRun with one
    sentence where shtab is not installed."""
    print(script(parser().parse_args(arguments).shell, root, words))
    return 0


def script(shell: str, root: argparse.ArgumentParser, words: Mapping[str, argparse.ArgumentParser]) -> str:
    """What ``main`` prints."""
    try:
        import shtab
    except ImportError as error:
        raise CannotRun(f'completion needs shtab ({error}): pip install "attncheck[completion]"') from None
    whole = argparse.ArgumentParser(prog="attncheck", description=root.description)
    for action in root._get_optional_actions():
        if action.dest != "help":
            whole._add_action(action)
    there = whole.add_subparsers()
    for name, word in words.items():
        there.add_parser(name, help=word.description, description=word.description, parents=[word], add_help=False)
    there.add_parser("list", help="print the properties")
    for each in (whole, *there.choices.values()):
        for action in each._actions:
            _values(action, shtab.FILE)
    names = shlex.join(Builtins().entries)
    if shell == "fish":
        return f"{shtab.complete(whole, shell)}\n{FISH.format(names=names)}"
    text: str = shtab.complete(whole, shell, preamble={"bash": BASH, "zsh": ZSH}[shell].format(names=names))
    return text.replace("      esac\n", ZSH_REST, 1) if shell == "zsh" else text


def _values(action: Any, file: object) -> None:
    """What an argument can be."""
    if action.dest == "property":
        action.choices = [*dict.fromkeys(prop.theme for prop in catalogue.PROPERTIES.values()), *catalogue.PROPERTIES]
    elif action.dest == "contract":
        action.choices = list(contracts())
    elif action.dest == "device":
        action.choices = ["cpu", "cuda"]
    elif str(action.metavar).startswith(("FILE", "PATH")) or action.dest in ("target", "like"):
        action.complete = file
