"""Run the command line: `python -m tta_panda` is the same as `tta-panda`."""

from tta_panda.cli import main

if __name__ == "__main__":
    main()
