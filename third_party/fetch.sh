#!/usr/bin/env bash
# fetch.sh FOLDER [PYTHON]: unpacks into FOLDER what sources.txt pins: each archive comes from PyPI by PYTHON's pip, and its SHA-256 is
# checked before anything of it is read. Runs none of its code. What lies in FOLDER already stays.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1 python=${2:-python3}
die() { printf 'fetch.sh: %s\n' "$*" >&2; exit 1; }

target_of() { printf '%s/%s-%s' "$folder" "$1" "${2:0:8}"; } # of a library and its sum
archive_of() { # of a release
  local name=${1%%==*}
  printf '%s/%s-%s.tar.gz' "$folder" "${name//-/_}" "${1##*==}"
}
# Prints lines of sources.txt; those whose target is there are left out.
missing() {
  local library release sum inside
  while read -r library release sum inside; do
    case $library in '#'* | '') continue ;; esac
    [ -d "$(target_of "$library" "$sum")" ] || printf '%s %s %s %s\n' "$library" "$release" "$sum" "$inside"
  done <"$here/sources.txt"
}

mkdir -p "$folder"
lines=$(missing) # not by <(missing), whose failure nothing would see
[ -n "$lines" ] || exit 0
wanted='' names=''
while read -r library release sum inside; do
  [ -e "$(archive_of "$release")" ] && continue
  printf 'fetching the sources of %s (%s)\n' "$library" "$release"
  wanted+="$release --hash=sha256:$sum"$'\n' names+=" $release"
done <<<"$lines"
if [ -n "$wanted" ]; then # by one pip, whose start takes longer than a download
  # -I leaves out what a build of pip's has put on the path; its own build tracker must not see this download.
  env -u PIP_BUILD_TRACKER PYTHONPATH="$here/pip_backend" "$python" -I -m pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary=:all: --no-build-isolation -d "$folder" -r /dev/stdin <<<"$wanted" ||
    die "could not download$names; put their source distributions into $folder, or configure with -DLUATTN_SYSTEM_LUA=ON"
fi
while read -r library release sum inside; do
  archive=$(archive_of "$release")
  printf '%s  %s\n' "$sum" "$archive" | sha256sum --check --status ||
    die "$archive: is not the archive that third_party/sources.txt names (SHA-256 $sum); remove it, and try again"
  part=$(mktemp -d "$folder/part.XXXXXX")
  tar -xzf "$archive" -C "$part" --exclude=.git --strip-components=1 "$(basename "$archive" .tar.gz)/$inside"
  mv "$part/$inside" "$(target_of "$library" "$sum")"
  rm -r "$part"
done <<<"$lines"
