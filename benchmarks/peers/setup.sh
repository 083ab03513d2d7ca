#!/bin/bash
# Makes a peer's own virtual environment, once, and prints its interpreter's path:
#
#     peer=$(bash benchmarks/peers/setup.sh datatrove) || skip "no peer"
#
# NAME.txt holds the peer's requirements, NAME.no-deps (if there is one) packages that are installed
# after them and without their own requirements; benchmarks/peers/.venv-NAME is made from both when
# it is absent or was made from other ones. PYTHON chooses the base interpreter (python3).
# The last line of stderr says why it failed, and the exit code is 1.
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }

name=${1:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
known=$(cd "$here" && ls ./*.txt | sed 's|^\./||; s|\.txt$||' | paste -sd' ')
[[ -n $name && -f $here/$name.txt ]] || fail "usage: setup.sh NAME, where NAME is one of: $known"

requirements=$here/$name.txt
bare=$here/$name.no-deps
[[ -f $bare ]] || bare=/dev/null
venv=$here/.venv-$name
made_from=$venv/requirements.txt  # written last: its presence means complete

install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" \
        >>"$log" 2>&1 9<&- \
        || fail "cannot install $name: $(grep -m 1 ERROR "$log" || tail -n 1 "$log")"
}

exec 9<"$requirements"
flock 9 2>/dev/null || true  # two benchmarks at once make it once, where there is a flock
if ! cat "$requirements" "$bare" | cmp -s - "$made_from"; then
    rm -rf "$venv"
    mkdir "$venv" || fail "cannot make $venv"
    log=$venv/setup.log
    "${PYTHON:-python3}" -m venv "$venv" >"$log" 2>&1 9<&- \
        || fail "cannot make $venv: $(tail -n 1 "$log")"
    install -r "$requirements"
    [[ $bare == /dev/null ]] || install --no-deps -r "$bare"
    cat "$requirements" "$bare" >"$made_from"
fi
echo "$venv/bin/python"
