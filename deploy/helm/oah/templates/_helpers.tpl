{{- define "oah.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What selects: never changed by an upgrade. */ -}}
{{- define "oah.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
pool: {{ . }}
{{- end }}
{{- end -}}

{{- define "oah.labels" -}}
{{ include "oah.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "oah.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "oah.secret" -}}
{{ default (include "oah.fullname" .) .Values.secret.existing }}
{{- end -}}

{{- define "oah.envFrom" -}}
- configMapRef: {name: {{ include "oah.fullname" .root }}}
- secretRef: {name: {{ include "oah.secret" .root }}}
{{- with .of.envFrom }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* A value as a string; a whole number stays one, however large. */ -}}
{{- define "oah.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{- /* Of a map: names in order, values as strings. */ -}}
{{- define "oah.env" -}}
{{- range $name, $value := . }}
- {name: {{ $name }}, value: {{ include "oah.text" $value | quote }}}
{{- end }}
{{- end -}}

{{- /* What every pod template begins with: metadata and where it may run. */ -}}
{{- define "oah.podMetadata" -}}
labels:
  {{- include "oah.labels" . | nindent 2 }}
  {{- with .of.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ toJson .root.Values.config | sha256sum }}
  {{- if not .root.Values.secret.existing }}
  checksum/secret: {{ toJson .root.Values.secret | sha256sum }}
  {{- end }}
  {{- with .of.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "oah.placement" -}}
enableServiceLinks: false # a Service named …-api would set OAH_API_PORT
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- if .of.topologySpread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "oah.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{- define "oah.unprivileged" -}}
securityContext:
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "oah.confined" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}

{{- /* Starting may take minutes: a process migrates the schema when nobody has. */ -}}
{{- define "oah.probes" -}}
startupProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 2, failureThreshold: 150}
readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 5, timeoutSeconds: {{ . }}}
livenessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 10, failureThreshold: 6, timeoutSeconds: {{ . }}}
{{- end -}}

{{- define "oah.pdb" -}}
{{- if .of.pdb.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{ include "oah.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .of.pdb.maxUnavailable }}
  selector:
    matchLabels: {{ include "oah.selector" . | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "oah.sharedClaim" -}}
{{ default (printf "%s-shared" (include "oah.fullname" .)) .Values.sharedStorage.existingClaim }}
{{- end -}}

{{- /* The settings of a pool, those of `worker` where it says nothing; as JSON. */ -}}
{{- define "oah.pool" -}}
{{- $own := get .root.Values.pools .pool | default dict -}}
{{- mergeOverwrite (deepCopy .root.Values.worker) $own | toJson -}}
{{- end -}}

{{- define "oah.poolName" -}}
{{ include "oah.fullname" .root }}-worker-{{ .pool }}
{{- end -}}

{{- /* Who scales a pool; nothing: nobody. */ -}}
{{- define "oah.scaler" -}}
{{- $by := (include "oah.pool" . | fromJson).scaling.by -}}
{{- if eq $by "controller" }}{{ if not .root.Values.controller.enabled }}{{ fail (printf "pool %s is to be scaled by the controller, which is not enabled" .pool) }}{{ end }}{{ end -}}
{{- if ne $by "none" }}{{ $by }}{{ end -}}
{{- end -}}

{{- /* Pools that the controller scales, by name, as OAH_SCALE__POOLS has them; as JSON. */ -}}
{{- define "oah.scaled" -}}
{{- $root := . -}}
{{- $found := dict -}}
{{- range $pool := keys .Values.pools | sortAlpha -}}
{{- if eq (include "oah.scaler" (dict "root" $root "pool" $pool)) "controller" -}}
{{- $of := include "oah.pool" (dict "root" $root "pool" $pool) | fromJson -}}
{{- $one := dict "kind" $of.kind "workload" (include "oah.poolName" (dict "root" $root "pool" $pool)) -}}
{{- $_ := set $one "minimum" (int64 $of.scaling.minimum) -}}
{{- $_ := set $one "maximum" (int64 $of.scaling.maximum) -}}
{{- $_ := set $one "slots" (int64 $of.slots) -}}
{{- $_ := set $one "per_worker" (int64 (default $of.slots $of.scaling.perWorker)) -}}
{{- with $of.scaling.targetWaitSeconds }}{{ $_ := set $one "target_wait_seconds" . }}{{ end -}}
{{- with $of.scaling.drainSeconds }}{{ $_ := set $one "drain_seconds" . }}{{ end -}}
{{- $_ := set $one "drain_then" $of.scaling.drainThen -}}
{{- $_ := set $found $pool $one -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
