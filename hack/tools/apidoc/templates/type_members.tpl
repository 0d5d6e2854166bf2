{{- /* Description and limits of a field. The limits come from the markers and
       not from .Validation, which prints a million as 1e+06 and leaves out the
       rules written in CEL. */ -}}
{{- define "type_members" -}}
{{- $m := .Markers -}}
{{- template "prose" .Doc -}}
{{- $limits := list -}}
{{- range index $m "kubebuilder:validation:Minimum" }}{{ $limits = append $limits (printf "at least %.0f" .) }}{{ end -}}
{{- range index $m "kubebuilder:validation:Maximum" }}{{ $limits = append $limits (printf "at most %.0f" .) }}{{ end -}}
{{- range index $m "kubebuilder:validation:MinLength" }}{{ $limits = append $limits (printf "length at least %d" .) }}{{ end -}}
{{- range index $m "kubebuilder:validation:MaxLength" }}{{ $limits = append $limits (printf "length at most %d" .) }}{{ end -}}
{{- range index $m "kubebuilder:validation:MinItems" }}{{ $limits = append $limits (printf "at least %d items" .) }}{{ end -}}
{{- range index $m "kubebuilder:validation:MaxItems" }}{{ $limits = append $limits (printf "at most %d items" .) }}{{ end -}}
{{- range index $m "kubebuilder:validation:Pattern" }}{{ $limits = append $limits (printf "matches `%s`" .) }}{{ end -}}
{{- range index $m "kubebuilder:validation:Enum" }}{{ $limits = append $limits (printf "one of %s" (join ", " .)) }}{{ end -}}
{{- /* The rules of a struct are printed above its own table. */ -}}
{{- if .Type.IsBasic }}{{ range index $m "kubebuilder:validation:XValidation" }}{{ with .Message }}{{ $limits = append $limits . }}{{ end }}{{ end }}{{ end -}}
{{- with $limits }}<br>_{{ join "; " . | replace "|" "\\|" }}._{{ end -}}
{{- end -}}
