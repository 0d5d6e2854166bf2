// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ledger knows who gets a seat.
//
// Everything in it is a function of what it is given: a pool, the leases in
// existence, the reservations not yet resolved, the requests and the time. It
// has no client, no logger and no clock, so that every decision can be tested,
// replayed and explained.
//
// # What is counted
//
// A seat is taken by a lease in existence that is not being deleted, and by a
// reservation: a grant whose lease has not yet been seen stored. Both are
// counted by the name of the lease, because the API server stores at most one
// object of a name at a time: a lease and its own reservation are one seat, and
// so are two creates of the same name that are both under way.
//
// An expired lease counts until it is deleted. That keeps the promise simple,
// never more leases than seats at any revision of the store, and costs nobody a
// seat: when a pool would be full only because of expired leases, the decision
// names those that must be deleted first.
package ledger
