{{/*
The name of the objects. A release called `jobqueue` or `jobqueue-operator` gives `jobqueue-operator`, any other
one `<release>-jobqueue-operator`. 53 characters leave room for what is appended: names end at 63.
*/}}
{{- define "jobqueue.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else if hasPrefix (printf "%s-" .Release.Name) $name -}}
{{- $name | trunc 53 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/*
The name of objects that belong to no namespace. Operators for single namespaces may be installed many times under one
name, so theirs carries the namespace.
*/}}
{{- define "jobqueue.clusterName" -}}
{{- if .Values.watchNamespaces -}}
{{- printf "%s-%s" (include "jobqueue.fullname" .) .Release.Namespace }}
{{- else -}}
{{- include "jobqueue.fullname" . }}
{{- end }}
{{- end }}

{{- define "jobqueue.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "jobqueue.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/*
What selects the operator's pods. It must never change: a Deployment's selector cannot. The name is not to be overridden
either: the NetworkPolicy of every managed Redis lets the operator in by it.
*/}}
{{- define "jobqueue.selectorLabels" -}}
app.kubernetes.io/name: jobqueue-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* The labels of every object: those that select no pods of the operator, so without a component. */}}
{{- define "jobqueue.labels" -}}
app.kubernetes.io/name: jobqueue-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: jobqueue
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The reference of an image: list of its values and the tag that holds when they name none. */}}
{{- define "jobqueue.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (index . 1) $image.tag) }}
{{- end }}
{{- end }}

{{/* What every pod of the chart has in common. */}}
{{- define "jobqueue.podSpec" -}}
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every container of the chart has in common. */}}
{{- define "jobqueue.container" -}}
image: {{ include "jobqueue.image" (list .Values.image .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What both the operator and its uninstallation must agree on. */}}
{{- define "jobqueue.env" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: LEASE_NAME
  value: {{ include "jobqueue.fullname" . }}
- name: WATCH_NAMESPACES
  value: {{ join "," .Values.watchNamespaces | quote }}
- name: LOG_LEVEL
  value: {{ .Values.logLevel }}
{{- end }}

{{/*
What the operator does in the namespaces it looks after. Rules of a ClusterRole or of a Role in each of them. Secrets
can be read by name only: the operator never lists them.
*/}}
{{- define "jobqueue.rules" -}}
- apiGroups: [jobqueue.dev]
  resources: [jobqueues]
  verbs: [get, list, watch, patch]
- apiGroups: [jobqueue.dev]
  resources: [jobqueues/status]
  verbs: [patch]
# Where the admission plugin OwnerReferencesPermissionEnforcement is on, only this lets the operator own what it makes.
- apiGroups: [jobqueue.dev]
  resources: [jobqueues/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
# Volumes and passwords of managed Redis, by name: nobody needs to list Secrets.
- apiGroups: [""]
  resources: [persistentvolumeclaims, secrets]
  verbs: [get, create, patch, delete]
# To see workers die, to mark those that drain, to wait until all are gone, and to replace the pod of a managed Redis.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* The binding's second half. */}}
{{- define "jobqueue.subjects" -}}
- kind: ServiceAccount
  name: {{ include "jobqueue.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
