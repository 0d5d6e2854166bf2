#!/usr/bin/env bash
# Copyright The seatpool Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails, and prints the difference, when the tree is not exactly what is
# committed. "make verify" runs it after generating, so a clean result also
# means that every generated file is up to date.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

status=$(git status --porcelain --untracked-files=all)
[[ -z $status ]] && exit 0

printf '%s\n' "$status"
if git rev-parse --quiet --verify HEAD >/dev/null; then
  git --no-pager diff HEAD
fi
echo 'The tree differs from what is committed, as shown above (?? is untracked).' >&2
echo 'Commit what belongs to the change, generated files included, and delete or ignore the rest.' >&2
exit 1
