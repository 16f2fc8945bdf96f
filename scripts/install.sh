#!/bin/sh
# install.sh COMMAND:PACKAGE... - makes sure that commands and headers are there. A name with a slash is
# a header under /usr/include. Installs with apt when it may, else prints the one line to type and stops.
missing=
for want in "$@"; do
    name=${want%%:*} package=${want#*:}
    case "$name" in
    */*) [ -e "/usr/include/$name" ] || missing="$missing $package" ;;
    *) command -v "$name" >/dev/null 2>&1 || missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0
if command -v apt-get >/dev/null 2>&1; then
    run=
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then run="sudo -n"; else run=no; fi
    fi
    if [ "$run" != no ]; then
        echo "installing:$missing" >&2
        DEBIAN_FRONTEND=noninteractive $run apt-get update -qq >/dev/null &&
            DEBIAN_FRONTEND=noninteractive $run apt-get install -y -qq --no-install-recommends $missing >/dev/null &&
            exit 0
    fi
fi
echo "Please install what is missing, then run this again:" >&2
echo "    sudo apt-get install -y --no-install-recommends$missing" >&2
exit 1
