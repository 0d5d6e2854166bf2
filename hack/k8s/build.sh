#!/usr/bin/env bash
# Copyright The seatpool Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds etcd, kube-apiserver and kubectl from their Go modules into
# bin/k8s/<version of Kubernetes>, each once. The versions are those of go.mod
# beside this file. With KUBEBUILDER_ASSETS set it builds nothing and only sees
# that the three are there. With --print it only prints the folder.

set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"

version="$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/go.mod")"
dir="${KUBEBUILDER_ASSETS:-$root/bin/k8s/$version}"

case "${1:-}" in
  '') ;;
  --print)
    echo "$dir"
    exit 0
    ;;
  *)
    echo "usage: hack/k8s/build.sh [--print]" >&2
    exit 2
    ;;
esac

if [[ -n "${KUBEBUILDER_ASSETS:-}" ]]; then
  for binary in etcd kube-apiserver kubectl; do
    [[ -x "$dir/$binary" ]] || {
      echo "KUBEBUILDER_ASSETS is $dir, which has no $binary; unset it to have one built." >&2
      exit 1
    }
  done
  echo "    using etcd, kube-apiserver and kubectl in $dir"
  exit 0
fi

mkdir -p "$dir"
cd "$here"
export CGO_ENABLED=0

unfinished=''
trap '[[ -z $unfinished ]] || rm -f "$unfinished"' EXIT

# build NAME PACKAGE LDFLAGS
build() {
  local name=$1 package=$2 ldflags=$3
  [[ -x "$dir/$name" ]] && return
  echo "    building $name for Kubernetes $version from Go modules: up to five minutes on two cores, once"
  # Moved into place, so that one that was interrupted is never taken for whole,
  # and under a name of its own, so that two may build at once.
  unfinished="$dir/.$name.$$"
  go build -trimpath -buildvcs=false -ldflags "$ldflags" -o "$unfinished" "$package"
  mv "$unfinished" "$dir/$name"
}

minor="${version#v1.}"
minor="${minor%%.*}"
stamp="-s -w -X k8s.io/component-base/version.gitVersion=$version"
stamp+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"

build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver "$stamp"
build kubectl k8s.io/kubernetes/cmd/kubectl "$stamp"
build etcd go.etcd.io/etcd/server/v3 '-s -w'
