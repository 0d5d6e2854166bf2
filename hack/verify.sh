#!/usr/bin/env bash
# Copyright The seatpool Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What "make verify" runs. It does not stop at the first check that fails, so
# that one run shows everything there is to repair.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

MAKE=${MAKE:-make}
export GO=${GO:-go}

failed=()

check() {
  local name=$1 start=$SECONDS
  shift
  printf '\n==> verify: %s\n' "$name"
  if "$@"; then
    printf '    ok, %d s\n' "$((SECONDS - start))"
  else
    printf '    FAILED, %d s\n' "$((SECONDS - start))"
    failed+=("$name")
  fi
}

echo 'Verifying: a minute on a machine that has done it before, ten on one that has not.'

# The tree is looked at last: it shows what generating changed.
check 'formatting' hack/verify-format.sh
check 'licence headers' hack/verify-headers.sh
check 'shell scripts' hack/verify-scripts.sh
check 'tidy modules' hack/verify-tidy.sh
check 'generated files' "$MAKE" --no-print-directory generate
check 'lint' "$MAKE" --no-print-directory lint
check 'clean tree' hack/verify-tree.sh

if ((${#failed[@]} > 0)); then
  printf '\nVerify failed: %s. Each is explained above.\n' "$(IFS=,; echo "${failed[*]}" | sed 's/,/, /g')" >&2
  exit 1
fi
printf '\nVerify passed in %d s.\n' "$SECONDS"
