// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

const (
	// lowestPort is above those that programs commonly listen on.
	lowestPort = 10240

	// ephemeralDefault is where Linux begins, unless told otherwise, with the
	// ports it gives to outgoing connections.
	ephemeralDefault = 32768

	// fewestPorts is how many there must be to choose from. Two clusters of 20
	// ports each then meet in less than one start of ten, and try again.
	fewestPorts = 4096

	// portAttempts is how many ports may be in use before it is given up.
	portAttempts = 1000
)

// freePorts returns ports of the loopback address that are free now.
func freePorts(ctx context.Context, n int) (ports []int, err error) {
	// Held until all are found, so that none is found twice.
	var held []net.Listener
	defer func() {
		for _, listener := range held {
			err = errors.Join(err, listener.Close())
		}
	}()
	for range n {
		listener, err := listen(ctx)
		if err != nil {
			return nil, err
		}
		held = append(held, listener)
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// listen listens on a free port of the loopback address.
//
// It is none of those that outgoing connections are given: these come and go by
// the thousand while somebody measures, and one of them would sooner or later sit
// where a killed manager has to be started again.
func listen(ctx context.Context) (net.Listener, error) {
	config := net.ListenConfig{}
	above := ephemeralBegin()
	if above < lowestPort+fewestPorts {
		return config.Listen(ctx, "tcp", "127.0.0.1:0") // on such a machine, hope
	}
	for range portAttempts {
		port := lowestPort + rand.IntN(above-lowestPort)
		listener, err := config.Listen(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			return listener, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, errors.New("there are not enough free ports on the loopback address: stop some of the programs that listen there")
}

// ephemeralBegin returns the lowest port that outgoing connections are given.
func ephemeralBegin() int {
	content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return ephemeralDefault
	}
	var begin, end int
	if _, err := fmt.Sscan(string(content), &begin, &end); err != nil {
		return ephemeralDefault
	}
	return begin
}
