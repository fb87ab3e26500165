# shellcheck shell=bash disable=SC2154 # the variables are the sourcing script's
# Sourced by vae.sh: how a stage is begun, run, logged and marked as done.
# It reads names, stage, stop_stage and exp from vae.sh.

usage_error() {
  echo "${0##*/}: $1" >&2
  exit 2
}

# stage_number NAME|NUMBER: print its number.
stage_number() {
  local i
  for i in "${!names[@]}"; do
    if [ "$1" = "$i" ] || [ "$1" = "${names[i]}" ]; then
      echo "$i"
      return
    fi
  done
  usage_error "no stage '$1'; there are: 0 to $((${#names[@]} - 1)), or ${names[*]}"
}

# absolute PATH: print it as seen from /.
absolute() {
  case $1 in
    /*) echo "$1" ;;
    *) echo "$PWD/$1" ;;
  esac
}

# begin STAGE OUTPUT INPUT...: true if the stage is asked for and not done yet. Done means: OUTPUT
# exists, and the done-file holds the hash of these inputs, files by content, other words as such.
begin() {
  current=$1
  local number output=$2 input
  number=$(stage_number "$current")
  if [ "$number" -lt "$stage" ] || [ "$number" -gt "$stop_stage" ]; then return 1; fi
  shift 2
  case $number in
    [4-7]) done_file=$exp/.done/$current ;;
    *) done_file=${output%%/*}/.done/$current ;;
  esac
  key=$(
    for input in "$@"; do
      if [ -f "$input" ]; then sha256sum <"$input"; else echo "$input"; fi
    done | sha256sum
  )
  if [ -e "$output" ] && [ -f "$done_file" ] && [ "$(cat "$done_file")" = "$key" ]; then
    echo "== stage $number $current: done before (to do it again: rm '$PWD/$done_file')" >&2
    return 1
  fi
  echo "== stage $number $current" >&2
  mkdir -p log
  started=$SECONDS
}

# run COMMAND...: print it, run it, and add what it writes to log/STAGE.log.
run() {
  local log=log/$current.log code=0
  echo "+$(printf ' %q' "$@")" | tee -a "$log" >&2
  "$@" 2>&1 | tee -i >(plain >>"$log") >&2 || code=$?
  if [ "$code" != 0 ]; then
    echo "${0##*/}: stage $current stopped with status $code; its log: $PWD/$log" >&2
    echo "${0##*/}: to go on from there, run the same command again" >&2
    exit "$code"
  fi
}

# finish: mark the stage that `begin` began as done.
finish() {
  mkdir -p "$(dirname "$done_file")"
  echo "$key" >"$done_file.tmp"
  mv "$done_file.tmp" "$done_file"
  echo "== stage $(stage_number "$current") $current took $((SECONDS - started)) s" >&2
}

# plain: the text without colours and without the progress bars that were overwritten.
plain() {
  trap '' INT
  sed -u -e 's/.*\r\(.\)/\1/' -e 's/\x1b\[[0-9;?]*[A-Za-z]//g'
}

# The commands write into a pipe; on a terminal, let them draw their progress all the same.
if [ -t 2 ]; then
  export FORCE_COLOR=1 COLUMNS=${COLUMNS:-$(tput cols 2>/dev/null || echo 80)}
fi
