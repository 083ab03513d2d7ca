#!/bin/bash
# Makes a peer's own virtual environment, once, and prints its interpreter's path:
#
#     peer=$(bash benchmarks/peers/setup.sh datatrove) || skip "no peer"
#
# NAME.txt holds the peer's requirements; benchmarks/peers/.venv-NAME is made from it when it is
# absent or was made from other requirements. PYTHON chooses the base interpreter (python3).
# The last line of stderr says why it failed, and the exit code is 1.
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }

name=${1:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
known=$(cd "$here" && ls ./*.txt | sed 's|^\./||; s|\.txt$||' | paste -sd' ')
[[ -n $name && -f $here/$name.txt ]] || fail "usage: setup.sh NAME, where NAME is one of: $known"

requirements=$here/$name.txt
venv=$here/.venv-$name
made_from=$venv/requirements.txt  # written last: its presence means complete

exec 9<"$requirements"
flock 9 2>/dev/null || true  # two benchmarks at once make it once, where there is a flock
if ! cmp -s "$requirements" "$made_from"; then
    rm -rf "$venv"
    mkdir "$venv" || fail "cannot make $venv"
    log=$venv/setup.log
    "${PYTHON:-python3}" -m venv "$venv" >"$log" 2>&1 9<&- \
        || fail "cannot make $venv: $(tail -n 1 "$log")"
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -r "$requirements" \
        >>"$log" 2>&1 9<&- \
        || fail "cannot install $name: $(grep -m 1 ERROR "$log" || tail -n 1 "$log")"
    cp "$requirements" "$made_from"
fi
echo "$venv/bin/python"
