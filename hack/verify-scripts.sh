#!/usr/bin/env bash
# Copyright The seatpool Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails when a shell script does not parse, cannot be executed, or goes on
# after a command that failed.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bad=0
complain() {
  echo "    $1" >&2
  bad=1
}

while IFS= read -r -d '' file; do
  [[ -f $file ]] || continue
  bash -n "$file" || complain "$file: does not parse"
  [[ -x $file ]] || complain "$file: is not executable; run: chmod +x $file"
  grep -qx 'set -euo pipefail' "$file" || complain "$file: does not say \"set -euo pipefail\""
done < <(git ls-files -z --cached --others --exclude-standard --deduplicate -- '*.sh' .ci/run)
exit "$bad"
