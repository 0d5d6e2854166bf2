// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"
)

// noop is a webhook server that allows everything at once. Like the operator's
// it speaks HTTP/1.1.
type noop struct {
	server *http.Server
	url    string
	asked  atomic.Int64
}

// startNoop serves with the certificate in the folder.
func startNoop(certDir string) (*noop, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &noop{url: "https://" + listener.Addr().String()}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	n.server = &http.Server{Handler: n, Protocols: protocols}
	go func() {
		_ = n.server.ServeTLS(listener, filepath.Join(certDir, "tls.crt"), filepath.Join(certDir, "tls.key")) // until it is closed
	}()
	return n, nil
}

// ServeHTTP reads of the review only what an answer needs.
func (n *noop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.asked.Add(1)
	var review struct {
		Request struct {
			UID types.UID `json:"uid"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"apiVersion":%q,"kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`,
		admissionv1.SchemeGroupVersion.String(), review.Request.UID)
}
