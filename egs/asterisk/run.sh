#!/usr/bin/env bash
# The Asterisk prompts: three voices, four languages, about 1.8 hours of studio speech.
#
#   egs/asterisk/run.sh                          everything, with conf/vae_small.yaml
#   egs/asterisk/run.sh --langs "en it"          some of: en es fr it
#   egs/asterisk/run.sh --stage train --tag long --config conf/vae_base.yaml
#
# All options: recipes/vae.sh --help. Any of them given here goes before the defaults below.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd -- "$here/../.." && pwd)

exec "$repo/recipes/vae.sh" --corpus "$here" --config "$repo/conf/vae_small.yaml" "$@"
