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
{values}  esac
  case "$word" in
    -*) case "$verb" in
{flags}      esac; return;;
  esac
  case "$verb" in
{words}  esac
}}
complete -o default -o filenames -F _paramedic paramedic
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](), end="")
    return 0


def _bash() -> str:
    """Where nothing is listed, the shell completes file names by itself (`-o default`)."""
    flags = values = words = ""
    for verb, parser in _verbs():
        flags += f"        {verb}) {_reply(_options(parser))}\n"
        if listed := _arguments(verb, parser):
            words += f"    {verb}) {_reply(listed)}\n"
        for action in parser._actions:
            if action.choices and action.option_strings:
                names = "|".join(f'"{verb} {option}"' for option in action.option_strings)
                values += f"    {names}) {_reply(list(map(str, action.choices)), 'return;;')}\n"
    return _BASH.format(verbs=" ".join(verb for verb, _ in _verbs()), flags=flags, values=values, words=words)


def _reply(words: list[str], end: str = ";;") -> str:
    return f'COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")){"; " if end != ";;" else ""}{end}'


def _zsh() -> str:
    return "#compdef paramedic\nautoload -U +X bashcompinit && bashcompinit\n" + _bash()


def _fish() -> str:
    lines = ["complete -c paramedic -n __fish_use_subcommand -f"]
    for verb, parser in _verbs():
        here = f"complete -c paramedic -n '__fish_seen_subcommand_from {verb}'"
        lines.append(f"complete -c paramedic -n __fish_use_subcommand -f -a {verb} -d '{_quoted(parser)}'")
        for action in parser._actions:
            names = " ".join(f"-l {o[2:]}" if o.startswith("--") else f"-s {o[1:]}" for o in action.option_strings)
            words = f" -x -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            value = "" if words or action.nargs == 0 else " -r"
            if names:
                lines.append(f"{here} {names}{words or value}")
        if listed := _arguments(verb, parser):
            lines.append(f"{here} -f -a '{' '.join(listed)}'")
    return "\n".join(lines) + "\n"


def _quoted(parser: argparse.ArgumentParser) -> str:
    return (parser.description or "").split("\n")[0].replace("'", "’")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _arguments(verb: str, parser: argparse.ArgumentParser) -> list[str]:
    """What may stand there without a dash, where it can be listed."""
    if verb == "explain":
        return _ids()
    return [str(word) for action in parser._actions if not action.option_strings for word in action.choices or ()]


def _verbs() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    from paramedic.commands import build_parser

    action = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    yield from action.choices.items()


def _ids() -> list[str]:
    from paramedic.knowledge import load

    knowledge = load()
    taxonomy = knowledge.taxonomy
    return [*knowledge.rules, *taxonomy.symptoms, *taxonomy.causes, *taxonomy.fix_patterns, *taxonomy.stages]
