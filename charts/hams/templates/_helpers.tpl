{{/* Names are those of the release: `helm install hams` gives hams-controller, hams-etcd. */}}
{{- define "hams.labels" -}}
app.kubernetes.io/name: hams
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "hams.selector" -}}
app.kubernetes.io/name: hams
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "hams.image" -}}
{{ .root.Values.image.registry }}/{{ .name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "hams.etcd.image" -}}
{{ .Values.etcd.image | default (include "hams.image" (dict "root" . "name" "hams-etcd")) }}
{{- end }}

{{- define "hams.etcd.own" -}}
{{- if not .Values.etcd.endpoints }}true{{ end }}
{{- end }}

{{/* Each member by its own name: a client that loses one goes on with another. */}}
{{- define "hams.etcd.endpoints" -}}
{{- if .Values.etcd.endpoints -}}
{{ join "," .Values.etcd.endpoints }}
{{- else -}}
{{- $list := list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $list = append $list (printf "http://%s-etcd-%d.%s-etcd-peers.%s.svc:2379" $.Release.Name $i $.Release.Name $.Release.Namespace) -}}
{{- end -}}
{{ join "," $list }}
{{- end -}}
{{- end }}

{{- define "hams.restricted" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "hams.pod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
