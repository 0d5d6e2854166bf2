#!/usr/bin/env bash
# Copyright The seatpool Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails when a Go file does not begin with hack/boilerplate.go.txt, or a shell
# script does not say the same in its own kind of comment. Only a build
# constraint, or a script's first line, may come before.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

go_header=$(cat hack/boilerplate.go.txt)
sh_header=$(sed 's|^//|#|' hack/boilerplate.go.txt)

missing=()
while IFS= read -r -d '' file; do
  [[ -f $file ]] || continue
  case $file in
    *.go) want=$go_header skip='^(//go:build .*|)$' ;;
    *) want=$sh_header skip='^#!' ;;
  esac
  got=$(awk -v skip="$skip" '!started && $0 ~ skip { next } { started = 1; print; if (++n == 2) exit }' "$file")
  [[ $got == "$want" ]] || missing+=("$file")
done < <(git ls-files -z --cached --others --exclude-standard --deduplicate -- '*.go' '*.sh' .ci/run)

if ((${#missing[@]} > 0)); then
  printf '    %s\n' "${missing[@]}"
  printf 'These files do not begin with the licence header. For Go it is\n%s\nand for a script the same after #.\n' "$go_header" >&2
  exit 1
fi
