#!/usr/bin/env bash
# Stages 0 and 1 for the Asterisk prompts. recipes/vae.sh calls it in the corpus folder:
#
#   local/data.sh download [--langs "en es fr it"]      makes downloads/<lang>/
#   local/data.sh prepare [--langs "en es fr it"]       makes data/{train,dev,test}
#
#   --langs "a b"      some of en es fr it
#   --db_root DIR      the sounds are already in this folder: nothing is downloaded
set -euo pipefail
repo=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
options=(langs db_root)
langs='en es fr it' db_root=''
# shellcheck source=../../../recipes/parse_options.sh
. "$repo/recipes/parse_options.sh"

for lang in $langs; do
  case $lang in
    en | es | fr | it) ;;
    *)
      echo "data.sh: --langs: found '$lang', wanted some of: en es fr it" >&2
      exit 2
      ;;
  esac
done

# debian LANG: the two packages of the language, unpacked here; false where that does not work.
debian() {
  local packages=("asterisk-core-sounds-$1" "asterisk-core-sounds-$1-g722") package
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  # Root may lack the right to act as _apt in this folder; apt then says so at length.
  local get=(apt-get -q -o APT::Sandbox::User=root)
  if ! "${get[@]}" download "${packages[@]}"; then
    [ "$(id -u)" = 0 ] && "${get[@]}" update && "${get[@]}" download "${packages[@]}" || return 1
  fi
  for package in ./*.deb; do dpkg-deb -x "$package" . && rm "$package" || return 1; done
}

download() {
  mkdir -p downloads
  rm -rf downloads/*.part
  for lang in $langs; do
    if [ -e "downloads/$lang" ]; then
      echo "downloads/$lang: there already"
      continue
    fi
    mkdir "downloads/$lang.part"
    if ! (cd "downloads/$lang.part" && debian "$lang"); then
      echo "No Debian package for '$lang' here: taking the sounds from their maker." >&2
      python "$repo/egs/asterisk/local/fetch.py" "$lang" "downloads/$lang.part/$lang"
    fi
    mv "downloads/$lang.part" "downloads/$lang"
  done
}

case ${1-} in
  download) [ -n "$db_root" ] || download ;;
  prepare)
    # shellcheck disable=SC2086 # one argument a language
    python "$repo/egs/asterisk/local/prepare.py" "${db_root:-downloads}" $langs
    ;;
  *)
    echo "data.sh: found '${1-}', wanted download or prepare" >&2
    exit 2
    ;;
esac
