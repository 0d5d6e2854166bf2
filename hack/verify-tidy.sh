#!/usr/bin/env bash
# Copyright The seatpool Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails, and prints what would change, when the go.mod or go.sum of any module
# of the repository is not tidy.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

untidy=()
while IFS= read -r file; do
  module=$(dirname "$file")
  echo "    $module"
  "${GO:-go}" mod tidy -C "$module" -diff || untidy+=("$module")
done < <(find . -name go.mod -not -path './bin/*' | sort)

if ((${#untidy[@]} > 0)); then
  echo "Run \"make tidy\"; these modules are not tidy: ${untidy[*]}" >&2
  exit 1
fi
