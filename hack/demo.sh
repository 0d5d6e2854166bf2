#!/usr/bin/env bash
# Copyright The seatpool Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The demo of "make run": starts a control plane of its own, lets holders check
# out, renew, be refused, die and release with nothing but kubectl, and checks
# that every step showed what it must. Then it stays up until Ctrl-C; with
# DEMO=once it ends.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# How long the demo's leases last, chosen to be watched: a dead holder's seat can
# be had again after ttl + skew, and is reaped after ttl + grace. Between the two
# are three seconds, in which step 5 has to ask.
namespace=demo pool=studio seats=3 ttl=6 skew=1 grace=4
renew_every=2

# What is printed of a lease when it is granted.
granted='jsonpath={.status.seatID} {.status.expiresAt}{"\n"}'

bold='' plain=''
if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' plain=$'\e[0m'
fi

work='' devcluster='' outcome=failed
loops=()

heading() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
say() { printf '%s\n' "$@"; }
indented() { sed 's/^/    /'; }
fail() {
  printf '\nThe demo stops here: %s\n' "$*" >&2
  exit 1
}

# cleanup ends what was started. What the cluster wrote is kept only if something
# went wrong, for its logs.
cleanup() {
  trap '' INT TERM
  local pid
  for pid in ${loops[@]+"${loops[@]}"}; do
    kill -9 "$pid" 2>/dev/null || true
  done
  if [[ -n $devcluster ]]; then
    kill -TERM "$devcluster" 2>/dev/null || true
  fi
  wait 2>/dev/null || true
  if [[ -z $work ]]; then
    return
  fi
  if [[ $outcome == failed ]]; then
    say "Logs are in $work: up.log, cluster/logs, and NAME.log of each holder." >&2
  else
    rm -rf "$work"
    rmdir "$root/.devcluster" 2>/dev/null || true
  fi
}
trap cleanup EXIT
trap 'outcome=interrupted; exit 130' INT
trap 'outcome=interrupted; exit 143' TERM

# eventually WHAT SECONDS COMMAND... tries the command until it succeeds, and
# fails with WHAT when it does not within that time.
eventually() {
  local what=$1 deadline=$((SECONDS + $2))
  shift 2
  until "$@"; do
    ((SECONDS < deadline)) || fail "$what"
    sleep 0.1
  done
}

# show COMMAND... prints a kubectl command and what it answers.
show() {
  say "  \$ $*"
  "$@" 2>&1 | indented
}

# show_table WHAT SECONDS COMMAND... does the same once the columns of the answer
# that $columns picks are $expected.
show_table() {
  local what=$1 deadline=$((SECONDS + $2)) table
  shift 2
  say "  \$ $*"
  until table=$("$@" 2>&1) && [[ $(awk "NR > 1 { print $columns }" <<<"$table") == "$expected" ]]; do
    if ((SECONDS >= deadline)); then
      indented <<<"$table"
      fail "$what"
    fi
    sleep 0.1
  done
  indented <<<"$table"
}

# show_pool USED FREE shows the pool, whose status may be a second behind.
show_pool() {
  local columns='$1, $2, $3, $4, $5, $6' expected="$pool $pool $seats $1 $2 True"
  show_table "of pool $pool, $1 of $seats seats should be in use and $2 free" 5 \
    kubectl get seatpools --namespace "$namespace"
}

# show_leases NAME... shows the leases, which must be these.
show_leases() {
  local columns='$1, $2, $3' expected
  expected=$(for name in "$@"; do say "$name $pool $name"; done)
  show_table "there should be the leases $* and no others" 5 \
    kubectl get seatleases --namespace "$namespace"
}

# show_event REASON LEASE shows the one event of that reason, which must name the
# lease.
show_event() {
  local columns='$3, $4, $6' expected="$1 seatpool/$pool $namespace/$2"
  show_table "there should be one event $1, about lease $2" 10 \
    kubectl get events --namespace "$namespace" --field-selector "reason=$1"
}

# field NAME PATH prints a field of a lease.
field() { kubectl get seatleases "$1" --namespace "$namespace" -o "jsonpath={$2}"; }

# checkout NAME asks for a seat. The answer is in $answer.
checkout() {
  cat >"$work/$1.yaml" <<EOF
apiVersion: seatpool.dev/v1alpha1
kind: SeatLease
metadata:
  name: $1
  namespace: $namespace
spec:
  poolRef:
    name: $pool
  holder:
    user: $1
    host: $1-laptop
    instanceID: installation-of-$1
EOF
  answer=$(kubectl create -f "$work/$1.yaml" -o "$granted" 2>&1)
}

show_answer() {
  say "  \$ kubectl create -f $1.yaml -o '$granted'"
  # The file's folder says nothing to whoever reads this.
  sed "s|$work/||g" <<<"$answer" | indented
}

# hold NAME renews in the background, as the holder's program would.
hold() {
  (
    trap - EXIT INT TERM
    while :; do
      sleep "$renew_every"
      kubectl patch seatleases "$1" --namespace "$namespace" --type=merge \
        --patch "{\"spec\":{\"renewTime\":\"$(date -u +%Y-%m-%dT%H:%M:%S).000000Z\"}}" || true
    done
  ) >"$work/$1.log" 2>&1 &
  printf -v "loop_$1" %s "$!"
  loops+=("$!")
}

# die NAME kills the holder's program at once, so that it can tell nobody.
die() {
  local loop="loop_$1"
  {
    kill -9 "${!loop}"
    wait "${!loop}" || true
  } 2>/dev/null
}

is_ready() {
  kill -0 "$devcluster" 2>/dev/null || fail "the control plane did not start: $(tail -n 5 "$work/up.log")"
  grep -qx ready "$work/up.log"
}
has_renewed() { [[ $(field "$1" .status.expiresAt) > $2 ]]; }
is_gone() { [[ -z $(kubectl get seatleases "$1" --namespace "$namespace" --ignore-not-found -o name) ]]; }

# start_cluster starts a control plane, and has kubectl use it and nothing of the
# user's own.
start_cluster() {
  local assets
  assets=$("$root/hack/k8s/build.sh" --print)
  [[ -x $assets/kubectl && -x $root/bin/devcluster && -x $root/bin/manager ]] ||
    fail 'bin/manager, bin/devcluster or kubectl is not there yet; run: make build assets'

  mkdir -p "$root/.devcluster"
  work=$(mktemp -d "$root/.devcluster/demo.XXXXXX")
  assets=$(cd "$assets" && pwd)
  export KUBEBUILDER_ASSETS=$assets PATH="$assets:$PATH"
  export KUBECONFIG="$work/cluster/kubeconfig" KUBECACHEDIR="$work/kubectl-cache" KUBERC=off

  "$root/bin/devcluster" up --dir "$work/cluster" >"$work/up.log" 2>&1 &
  devcluster=$!
  eventually 'the control plane was not ready within two minutes' 120 is_ready
}

heading 'Starting etcd, kube-apiserver and the operator (about ten seconds)'
start_cluster
say 'Ready. Everything from here on is plain kubectl.'
began=$SECONDS
cd "$root"

heading '1. A pool of seats is an object like any other'
show kubectl apply -k config/samples
kubectl create --dry-run=server -f config/samples/lease.yaml >/dev/null ||
  fail 'the lease in config/samples should be granted'
columns='$1, $2, $3, $4, $5, $6'
expected=$(say 'acme-cad acme-cad 10 0 10 True' 'acme-studio acme-studio 3 0 3 True' 'render acme-render 25 0 25 True')
show_table 'every seat of the samples should be free' 5 kubectl get seatpools --namespace default

heading "2. For this demo: a pool of $seats seats, whose leases last $ttl seconds"
cat >"$work/pool.yaml" <<EOF
apiVersion: seatpool.dev/v1alpha1
kind: SeatPool
metadata:
  name: $pool
  namespace: $namespace
spec:
  seats: $seats
  ttlSeconds: $ttl
  skewSeconds: $skew
  reapGraceSeconds: $grace
EOF
kubectl create namespace "$namespace" >/dev/null
say '  $ kubectl create -f - <<EOF'
indented <"$work/pool.yaml"
say '  EOF'
kubectl create -f "$work/pool.yaml" | indented
show_pool 0 "$seats"

heading '3. Three holders check out: creating a lease is the checkout, and its answer the seat'
seat_ids=() until_first=()
for name in ann bob cleo; do
  checkout "$name" || fail "$name should have got a seat, and was told: $answer"
  hold "$name"
  show_answer "$name"
  read -r seat_id expires_at <<<"$answer"
  seat_ids+=("$seat_id") until_first+=("$expires_at")
done
[[ $(printf '%s\n' "${seat_ids[@]}" | grep -Ex '[0-9a-f]{32}' | sort -u | wc -l) -eq 3 ]] ||
  fail "there should be three different seats, not ${seat_ids[*]}"
[[ $(field ann .status.token) =~ ^[^.]+\.[^.]+\.[^.]+$ ]] || fail "ann's lease should carry a signed token"
show_pool 3 0
show_leases ann bob cleo
say "They hold on by renewing, here every $renew_every seconds:" \
  "  \$ kubectl patch seatleases NAME --type=merge --patch '{\"spec\":{\"renewTime\":\"...\"}}'"
for name in ann bob cleo; do
  eventually "$name's lease should have been renewed, which $work/$name.log says more about" 10 \
    has_renewed "$name" "${until_first[0]}"
  expires_at=$(field "$name" .status.expiresAt)
  say "    $name: expires at ${expires_at#*T} now, instead of ${until_first[0]#*T}"
  until_first=("${until_first[@]:1}")
done

heading '4. A fourth is refused, with a sentence'
! checkout dora || fail 'dora should have been refused, and got a seat of a pool that is full'
show_answer dora
[[ $answer == *SeatsExhausted*"all $seats seats of pool $namespace/$pool are in use"* ]] ||
  fail 'the refusal should say that all seats are in use'
show_leases ann bob cleo

heading "5. bob's program is killed (kill -9). His seat comes back by itself: dora keeps asking, and gets it"
die bob
bob_until=$(field bob .status.expiresAt)
say "    bob's lease expires at ${bob_until#*T}, and counts $skew s longer, because clocks differ"
refused=0 deadline=$((SECONDS + ttl + skew + 10))
until checkout dora; do
  [[ $answer == *SeatsExhausted* ]] || fail "dora should have been refused for want of a seat, not told: $answer"
  ((SECONDS < deadline)) || fail "bob's seat should have come back by now"
  refused=$((refused + 1))
  sleep 0.2
done
hold dora
say "    dora was refused $refused times more, and then:"
show_answer dora
((refused > 0)) || fail 'dora should not have got a seat at once, while bob still had his'
[[ $(field dora .status.acquiredAt) > $bob_until ]] || fail "dora should not have got bob's seat before it had expired"
say 'It was her checkout that took it back; she did not have to wait for the reaper:'
show_event SeatReclaimed bob
show_pool 3 0
show_leases ann cleo dora

heading '6. cleo releases her seat by deleting the lease. It is free at once'
die cleo
show kubectl delete seatleases cleo --namespace "$namespace"
show_pool 2 1
show_leases ann dora

heading "7. ann's program is killed too, and nobody asks for her seat: the reaper clears it away"
die ann
ann_until=$(field ann .status.expiresAt)
say "    ann's lease expires at ${ann_until#*T}, and is deleted $grace s later"
eventually "ann's lease should have been reaped by now" $((ttl + grace + 10)) is_gone ann
show_event LeaseReaped ann
show_pool 1 2
show_leases dora

heading '8. dora leaves, too. The pool remembers its peak, which is never above its seats'
die dora
show kubectl delete seatleases dora --namespace "$namespace"
columns='$1, $4, $5, $8' expected="$pool 0 $seats $seats"
show_table "no seat should be in use, and $seats at the peak" 5 \
  kubectl get seatpools --namespace "$namespace" -o wide

heading "Every step showed what it must, in $((SECONDS - began)) seconds"
outcome=shown
if [[ ${DEMO:-} == once ]]; then
  exit 0
fi

trap 'say "" "Stopping"; exit 0' INT TERM
cat <<EOF
It all stays up until you press Ctrl-C. To try it yourself, in another terminal:

  cd $root
  export KUBECONFIG=$KUBECONFIG
  export PATH=$KUBEBUILDER_ASSETS:\$PATH

  kubectl create -f config/samples/lease.yaml -o yaml    # check out, for a minute
  kubectl get seatpools,seatleases --all-namespaces      # who has what
  kubectl delete seatleases ann                          # give it back
  kubectl explain seatpools.spec                         # what a pool can do
EOF
wait "$devcluster" || true
outcome=failed
fail "the control plane ended by itself: $(tail -n 5 "$work/up.log")"
