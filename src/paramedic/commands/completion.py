"""print a completion script for your shell

  paramedic completion bash > ~/.local/share/bash-completion/completions/paramedic
  paramedic completion zsh  > ~/.zfunc/_paramedic
  paramedic completion fish > ~/.config/fish/completions/paramedic.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

_BASH = """\
_paramedic() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} verb=${{COMP_WORDS[1]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$word")); return; fi
  case "$verb $before" in
{choices}  esac
  case "$word" in
    -*) case "$verb" in
{flags}      esac; return;;
  esac
  case "$verb" in explain) COMPREPLY=($(compgen -W "{ids}" -- "$word"));; *) COMPREPLY=($(compgen -f -- "$word"));; esac
}}
complete -o filenames -F _paramedic paramedic
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](), end="")
    return 0


def _bash() -> str:
    flags = choices = ""
    for verb, parser in _verbs():
        options = [o for action in parser._actions for o in action.option_strings]
        flags += f'        {verb}) COMPREPLY=($(compgen -W "{" ".join(options)}" -- "$word"));;\n'
        for action in parser._actions:
            if action.choices and action.option_strings:
                names = "|".join(f'"{verb} {o}"' for o in action.option_strings)
                words = " ".join(map(str, action.choices))
                choices += f'    {names}) COMPREPLY=($(compgen -W "{words}" -- "$word")); return;;\n'
    return _BASH.format(verbs=" ".join(v for v, _ in _verbs()), flags=flags, choices=choices, ids=" ".join(_ids()))


def _zsh() -> str:
    return "#compdef paramedic\nautoload -U +X bashcompinit && bashcompinit\n" + _bash()


def _fish() -> str:
    lines = ["complete -c paramedic -n __fish_use_subcommand -f"]
    for verb, parser in _verbs():
        help = (parser.description or "").split("\n")[0].replace("'", "’")
        lines.append(f"complete -c paramedic -n __fish_use_subcommand -f -a {verb} -d '{help}'")
        for action in parser._actions:
            names = " ".join(f"-l {o[2:]}" if o.startswith("--") else f"-s {o[1:]}" for o in action.option_strings)
            words = f" -x -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            if names:
                lines.append(f"complete -c paramedic -n '__fish_seen_subcommand_from {verb}' {names}{words}")
    lines.append(f"complete -c paramedic -n '__fish_seen_subcommand_from explain' -f -a '{' '.join(_ids())}'")
    return "\n".join(lines) + "\n"


def _verbs() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    from paramedic.commands import build_parser

    action = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    yield from action.choices.items()


def _ids() -> list[str]:
    from paramedic.knowledge import load

    knowledge = load()
    taxonomy = knowledge.taxonomy
    return [*knowledge.rules, *taxonomy.symptoms, *taxonomy.causes, *taxonomy.fix_patterns, *taxonomy.stages]
