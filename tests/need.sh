#!/bin/sh
# need.sh PACKAGE... - install the Debian packages that are missing.
missing=
for p in "$@"; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' ||
		missing="$missing $p"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
SUDO=
[ "$(id -u)" = 0 ] || SUDO=sudo
# Debian starts services when it installs them; the tests want none.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
$SUDO apt-get install -y -qq $missing >/dev/null 2>&1 ||
	{ $SUDO apt-get update -qq && $SUDO apt-get install -y -qq $missing >/dev/null; } ||
	{ echo "cannot install:$missing" >&2; exit 1; }
