"""Names photos: python3 name.py BUNDLE PHOTO..."""

import sys

import edgepack_runtime


def main() -> int:
    if len(sys.argv) < 3:
        print(f"usage: {sys.argv[0]} BUNDLE PHOTO...", file=sys.stderr)
        return 2
    try:
        with edgepack_runtime.Model(sys.argv[1]) as model, model.session() as session:
            for photo in sys.argv[2:]:
                session.set_image(photo)
                session.run()
                print(f"{photo}: {session.results()}")
    except edgepack_runtime.EdgepackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
