import sys

from paramedic.commands import main

sys.exit(main())
