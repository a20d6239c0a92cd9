"""`python -m leverplus` is `lever`."""

from leverplus.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
