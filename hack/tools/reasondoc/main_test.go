// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	testCases := map[string]struct {
		source  string
		want    string
		wantErr string
	}{
		"a block becomes a section and names become values": {
			source: `package p

// Reasons of refusals, for programs. They never change.
const (
	// ReasonFull surfaces when every seat is in use; see
	// ReasonBusy.
	ReasonFull = "Full"
	// ReasonBusy surfaces on a | pipe.
	ReasonBusy = "Busy"
)
`,
			want: `
## Conditions, reasons and events

### Reasons of refusals

For programs. They never change.

| Value | Meaning |
| --- | --- |
| ` + "`Full`" + ` | Surfaces when every seat is in use; see ` + "`Busy`" + `. |
| ` + "`Busy`" + ` | Surfaces on a \| pipe. |
`,
		},
		"a constant without a comment is refused": {
			source:  "package p\n\n// Reasons.\nconst ReasonFull = \"Full\"\n",
			wantErr: "the comment of ReasonFull does not begin with its name",
		},
		"a block without a comment is refused": {
			source:  "package p\n\nconst (\n\t// A is a.\n\tA = \"a\"\n)\n",
			wantErr: "a const block has no comment",
		},
		"a constant that is not a string is refused": {
			source:  "package p\n\n// Numbers.\nconst (\n\t// One is one.\n\tOne = 1\n)\n",
			wantErr: "One is not a string literal",
		},
		"a file without constants is refused": {
			source:  "package p\n",
			wantErr: "no constants",
		},
	}
	for name, tc := range testCases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.go")
			if err := os.WriteFile(path, []byte(tc.source), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run(path, &out)
			switch {
			case tc.wantErr == "" && err != nil:
				t.Fatalf("run() failed: %v", err)
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)):
				t.Fatalf("run() = %v, want an error with %q", err, tc.wantErr)
			case out.String() != tc.want:
				t.Errorf("run() wrote\n%s\nwant\n%s", out.String(), tc.want)
			}
		})
	}
}
