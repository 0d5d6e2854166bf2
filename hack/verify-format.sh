#!/usr/bin/env bash
# Copyright The seatpool Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails when gofmt would change a file of the repository, generated ones
# included. The order of imports is lint's to check.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

gofmt="$("${GO:-go}" env GOROOT)/bin/gofmt"
command -v "$gofmt" >/dev/null || gofmt=gofmt

mapfile -d '' -t files < <(git ls-files -z --cached --others --exclude-standard --deduplicate -- '*.go')
existing=()
for file in "${files[@]}"; do
  # A file that is deleted but not committed yet is still listed.
  [[ -f $file ]] && existing+=("$file")
done

# gofmt fails both when there is a difference and when a file does not parse.
if ! diff=$("$gofmt" -s -d "${existing[@]}") || [[ -n $diff ]]; then
  printf '%s\n' "$diff"
  echo 'Not formatted, as shown above: run "make fmt".' >&2
  exit 1
fi
