# shellcheck shell=bash disable=SC2154 # the variables are the sourcing script's
# Sourced, without arguments, by a script that has set `options=(name ...)` and a default for each:
# turns `--name value` and `--name=value` into name=value, leaves the other arguments in "$@".
# Unknown options and missing values end the script with status 2; `--help` prints its header.

rest=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$0"
      exit 0
      ;;
    --)
      shift
      rest+=("$@")
      break
      ;;
    --*)
      name=${1%%=*} value='' known=no
      name=${name#--}
      name=${name//-/_}
      for option in "${options[@]}"; do
        if [ "$name" = "$option" ]; then known=yes; fi
      done
      if [ "$known" = no ]; then
        echo "${0##*/}: unknown option '${1%%=*}'; known: $(printf -- '--%s ' "${options[@]}")" >&2
        exit 2
      fi
      if [[ $1 == *=* ]]; then
        value=${1#*=}
      elif [ $# -ge 2 ] && [[ $2 != --* ]]; then
        value=$2
        shift
      else
        echo "${0##*/}: option '$1' needs a value: $1 VALUE" >&2
        exit 2
      fi
      printf -v "$name" '%s' "$value"
      ;;
    *) rest+=("$1") ;;
  esac
  shift
done
set -- ${rest[@]+"${rest[@]}"}
