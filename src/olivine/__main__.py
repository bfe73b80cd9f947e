"""`python -m olivine`."""

from olivine.cli.main import main

main()
