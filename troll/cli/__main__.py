"""``python -m troll.cli``."""

from troll.cli.app import main

if __name__ == "__main__":
    main()
