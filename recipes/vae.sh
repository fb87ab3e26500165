#!/usr/bin/env bash
# From a corpus to a trained model, its figures and its audio, in eight stages:
#
#   recipes/vae.sh --corpus egs/asterisk [option ...] [section.field=value ...]
#
# 0 download  1 prepare  2 extract  3 stats  4 train  5 evaluate  6 synthesize  7 export
#
#   --corpus DIR       the folder of the corpus; data, dump, exp and log are made in it
#   --stage N          first stage to run, by number or name (0)
#   --stop_stage N     last stage to run, by number or name (7)
#   --config FILE      settings (conf/vae_base.yaml)
#   --tag NAME         the run is exp/NAME (the name of the config file)
#   --nj N             processes for extraction, and for training without a GPU (all cores)
#   --ngpu N           GPUs to train on; 0 for none (all)
#   --langs "a b"      languages, where the corpus has several
#   --db_root DIR      take the corpus from this folder instead of downloading it
#
# `section.field=value` changes one setting. A finished stage is skipped while its inputs and
# settings stay the same; after an interruption the same command goes on where it stopped.
set -euo pipefail
export LC_ALL=C

repo=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
options=(corpus stage stop_stage config tag nj ngpu langs db_root)
corpus='' stage=0 stop_stage=7 config=$repo/conf/vae_base.yaml tag='' langs='' db_root=''
nj=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
ngpu=$(nvidia-smi -L 2>/dev/null | grep -c . || true)
# shellcheck source=parse_options.sh
. "$repo/recipes/parse_options.sh"
# shellcheck source=cmd.sh
. "$repo/recipes/cmd.sh"

names=(download prepare extract stats train evaluate synthesize export)
stage=$(stage_number "$stage")
stop_stage=$(stage_number "$stop_stage")
overrides=() data_overrides=()
for argument in "$@"; do
  case $argument in
    feature.*=* | data.*=*) overrides+=("$argument") data_overrides+=("$argument") ;;
    [a-z]*.*=*) overrides+=("$argument") ;;
    *) usage_error "unknown argument '$argument'; wanted --option value or section.field=value" ;;
  esac
done
[[ $nj =~ ^[1-9][0-9]*$ ]] || usage_error "--nj: found '$nj', wanted a whole number from 1"
[[ $ngpu =~ ^[0-9]+$ ]] || usage_error "--ngpu: found '$ngpu', wanted a whole number from 0"
[ -d "$corpus" ] || usage_error "--corpus: found '$corpus', wanted a folder, as egs/asterisk"
[ -f "$config" ] || usage_error "--config: no file '$config'; there are: $(ls "$repo"/conf/*.yaml)"
tag=${tag:-$(basename "$config" .yaml)}
[[ $tag =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || usage_error "--tag: found '$tag', wanted a plain name"
config=$(absolute "$config")
db_root=${db_root:+$(absolute "$db_root")}
corpus_options=(${langs:+--langs "$langs"} ${db_root:+--db_root "$db_root"})
exp=exp/$tag
parts=(train dev test)

# A virtual environment made by `make` serves when none is active.
command -v audiovae >/dev/null || PATH=$repo/.venv/bin:$PATH
command -v audiovae >/dev/null || usage_error "no audiovae on PATH; run: make -C '$repo' demo"
cd -- "$corpus"

if begin download downloads "${corpus_options[@]}"; then
  run local/data.sh download "${corpus_options[@]}"
  finish
fi
if begin prepare data "${corpus_options[@]}"; then
  run local/data.sh prepare "${corpus_options[@]}"
  for part in "${parts[@]}"; do run audiovae validate "data/$part"; done
  finish
fi
if begin extract dump "$config" "${data_overrides[@]}" data/*/wav.scp data/*/segments data/*/text; then
  for part in "${parts[@]}"; do
    run audiovae extract "data/$part" "dump/$part" --config "$config" --nj "$nj" "${data_overrides[@]}"
  done
  finish
fi
if begin stats dump/train/stats.json dump/train/{feature.json,feats.scp,utt2num_frames}; then
  run audiovae stats dump/train
  finish
fi
if begin train "$exp/checkpoints" "$config" "${overrides[@]}" dump/train/{stats.json,feats.scp}; then
  train=(train --config "$config" --dump dump --exp "$exp")
  if [ "$ngpu" -gt 0 ]; then
    if [ "$ngpu" -eq 1 ]; then kind=one_gpu; else kind=multi_gpu; fi
    run accelerate launch --quiet --config_file "$repo/conf/accelerate/$kind.yaml" \
      --num_processes "$ngpu" -m audiovae "${train[@]}" "${overrides[@]}"
  else
    # more processes than four would each get too little of a batch
    run audiovae "${train[@]}" --num_processes "$((nj < 4 ? nj : 4))" "${overrides[@]}"
  fi
  finish
fi
if begin evaluate "$exp/eval/test/metrics.json" "$exp"/checkpoints/*/manifest.json dump/test/feats.scp; then
  run audiovae evaluate "$exp" --dump dump --set test
  finish
fi
if begin synthesize "$exp/synth" "$exp"/checkpoints/*/manifest.json dump/test/feats.scp; then
  run audiovae synthesize "$exp" demo --dump dump --set test --out "$exp/synth"
  finish
fi
if begin export "$exp/export" "$exp"/checkpoints/*/manifest.json; then
  run audiovae export "$exp" "$exp/export"
  finish
fi

if [ "$stop_stage" -ge 6 ]; then
  echo
  echo "Listen and look: $PWD/$exp/synth/index.html"
  echo "Figures:         $PWD/$exp/eval/test/metrics.json, plots beside it"
  echo "Model:           $PWD/$exp/export"
fi
