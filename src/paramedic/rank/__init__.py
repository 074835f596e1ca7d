"""What runs inside the user's ranks under `paramedic run`: standard library only, torch touched only once the program
itself has imported it. Every hook is bounded, catches all, and turns itself off; `watched.off` says so in the report.

The program's own Python may not have Paramedic installed, and may be older: this folder is loaded by its path
(`site/`), imports nothing of ours but itself, and keeps to old syntax.
"""
