#!/bin/sh
# locale.sh FOLDER: builds the locale "comma" in FOLDER, for LOCPATH. localedef is part of glibc. The
# definition and the character map are in this folder, so that no package with locales is needed. Without
# localedef there is no locale, and tests that need it are skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
command -v localedef >/dev/null || exit 0
{
  printf '<code_set_name> ANSI_X3.4-1968\n<comment_char> %%\n<escape_char> /\nCHARMAP\n'
  i=0
  while [ $i -lt 128 ]; do
    printf '<U%04X> /x%02x U\n' $i $i
    i=$((i + 1))
  done
  printf 'END CHARMAP\n'
} >ascii.charmap
rm -rf comma
localedef -c -f ./ascii.charmap -i "$here/comma.locale" ./comma >localedef.log 2>&1 || true # warns of undefined categories
