"""Deleting and changing what runs in a cluster."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import Origin
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, after_sub, operand

DANGERS = (
    DangerClass(
        "kubernetes",
        "cluster change",
        "this cluster",
        r"\bkubectl\b.*\b(?:delete|drain|cordon|scale|replace)\b|\bhelm\s+(?:uninstall|delete)",
        "kubectl delete pod x",
    ),
)

KUBECTL = "kubectl oc k kubecolor"


def is_rehearsal(call: CommandCall) -> bool:
    return any(
        name.startswith("--dry-run") and (value is None or value.text != "none")
        for name, value in call.arguments.options
    )


def scales_down(call: CommandCall) -> bool:
    replicas = call.arguments.value("--replicas")
    return not is_rehearsal(call) and (replicas is None or not re.fullmatch(r"[1-9]\d*", replicas.text))


def applies_foreign(call: CommandCall) -> bool:
    sources = call.arguments.values("-f", "--filename", "-k", "--kustomize")
    foreign_input = call.stdin is not None and bool(call.stdin.origin & Origin.NETWORK)
    return not is_rehearsal(call) and (
        foreign_input or any(re.match(r"https?://|github\.com", each.text) for each in sources)
    )


def for_real(call: CommandCall) -> bool:
    return not is_rehearsal(call)


def reaches_host(call: CommandCall) -> bool:
    return any(
        re.search(
            r"--privileged|--profile=(?:sysadmin|netadmin)|[\"'](?:hostPID|hostPath|hostNetwork|privileged)[\"']",
            w.text,
        )
        for w in call.words
    )


RULES = (
    Rule(
        "kubectl oc k",
        "run|debug|create|patch",
        reason="gives a container access to its host",
        where=reaches_host,
        yes="kubectl run x --image=a --privileged",
        no="kubectl run x --image=a",
    ),
    Rule(
        KUBECTL,
        "delete",
        reason="deletes objects from the cluster",
        where=for_real,
        yes="kubectl -n prod delete pod x",
        no="kubectl get pods",
    ),
    Rule(
        KUBECTL,
        "debug",
        reason="opens a shell on a node with all its files",
        where=operand(lambda text: re.match(r"nodes?/", text)),
        yes="kubectl debug node/n1 -it --image=busybox",
        no="kubectl debug pod/web --image=busybox",
    ),
    Rule(
        KUBECTL,
        "create cronjob|cronjobs|cj",
        reason="schedules commands in the cluster",
        where=for_real,
        yes="kubectl create cronjob x --image=a --schedule='* * * * *' -- sh",
        no="kubectl create namespace x",
    ),
    Rule(
        KUBECTL,
        "drain|cordon|uncordon|taint|evict",
        reason="takes a node out of service",
        where=for_real,
        yes="kubectl drain n1",
        no="kubectl describe node n1",
    ),
    Rule(
        KUBECTL,
        "scale",
        reason="scales a workload down",
        where=scales_down,
        yes="kubectl scale deploy x --replicas=0",
        no="kubectl scale deploy x --replicas=3",
    ),
    Rule(
        KUBECTL,
        "replace",
        reason="replaces objects in the cluster",
        where=for_real,
        yes="kubectl replace --force -f x.yaml",
        no="kubectl diff -f x.yaml",
    ),
    Rule(
        KUBECTL,
        "patch|edit|annotate_|label_|autoscale_|set",
        reason="changes objects in the cluster",
        where=for_real,
        yes="kubectl patch node n1 -p '{}'",
        no="kubectl get node n1",
    ),
    Rule(
        KUBECTL,
        "apply",
        reason="deletes objects that the files do not name",
        flags="--prune --force",
        where=for_real,
        yes="kubectl apply --prune -f .",
        no="kubectl apply -f x.yaml",
    ),
    Rule(
        KUBECTL,
        "apply|create",
        reason="applies objects from the network",
        where=applies_foreign,
        yes="kubectl apply -f https://x.example/m.yaml",
        no="kubectl apply -f m.yaml",
    ),
    Rule(
        KUBECTL,
        "rollout undo|pause",
        reason="rolls back or pauses a rollout",
        where=for_real,
        yes="kubectl rollout undo deploy/x",
        no="kubectl rollout status deploy/x",
    ),
    Rule(
        KUBECTL,
        "config delete-context|delete-cluster|delete-user|unset",
        reason="changes the cluster access settings",
        yes="kubectl config delete-context x",
        no="kubectl config view",
    ),
    Rule(
        KUBECTL,
        "create|auth clusterrolebinding|rolebinding|reconcile",
        reason="grants permissions on the cluster",
        where=for_real,
        yes="kubectl create clusterrolebinding x --clusterrole=cluster-admin --user=y",
        no="kubectl auth can-i get pods",
    ),
    Rule(
        KUBECTL,
        "certificate approve|deny",
        reason="grants permissions on the cluster",
        yes="kubectl certificate approve x",
        no="kubectl get csr",
    ),
    Rule(
        "oc",
        "adm|project_|delete drain|cordon|uncordon|prune|policy|taint",
        reason="changes the cluster",
        yes="oc adm drain n1",
        no="oc get pods",
    ),
    Rule(
        "helm",
        "uninstall|delete|rollback|del|un",
        reason="removes or rolls back a release",
        unless="--dry-run",
        yes="helm uninstall x",
        no="helm list",
    ),
    Rule(
        "helm",
        "upgrade",
        reason="force-replaces a release",
        flags="--force --reset-values --cleanup-on-fail",
        unless="--dry-run",
        yes="helm upgrade --force x ./c",
        no="helm upgrade x ./c --dry-run",
    ),
    Rule(
        "helmfile", "destroy|delete|apply|sync", reason="changes releases", yes="helmfile destroy", no="helmfile diff"
    ),
    Rule(
        "argocd",
        "app|proj|cluster|repo delete|rm|rollback|terminate-op",
        reason="removes or rolls back an application",
        yes="argocd app delete x",
        no="argocd app list",
    ),
    Rule(
        "flux",
        "delete|uninstall|suspend",
        reason="removes objects from the cluster",
        yes="flux uninstall",
        no="flux get all",
    ),
    Rule(
        "velero",
        "delete|backup|restore|schedule",
        reason="deletes backups",
        where=after_sub(0, lambda text: text == "delete"),
        yes="velero backup delete x",
        no="velero backup get",
    ),
    Rule(
        "istioctl linkerd",
        "uninstall|x|experimental",
        reason="removes objects from the cluster",
        where=after_sub(0, lambda text: text == "uninstall"),
        yes="istioctl uninstall --purge",
        no="istioctl version",
    ),
    Rule(
        "kubeadm",
        "reset|upgrade|token",
        reason="changes the cluster",
        where=after_sub(0, lambda text: text in ("reset", "apply", "delete")),
        yes="kubeadm reset -f",
        no="kubeadm config images list",
    ),
    Rule(
        "eksctl",
        "delete|drain|scale",
        reason="removes objects from the cluster",
        unless="--dry-run",
        yes="eksctl delete cluster x",
        no="eksctl get cluster",
    ),
    Rule(
        "etcdctl",
        "del|snapshot|member|defrag|auth|user|role",
        reason="changes the cluster's database",
        where=after_sub(0, lambda text: text in ("del", "restore", "remove", "disable", "delete")),
        yes="etcdctl del '' --prefix",
        no="etcdctl get x",
    ),
    Rule(
        "kops",
        "delete|rolling-update|update",
        reason="changes the cluster",
        flags="--yes -y",
        yes="kops delete cluster --name x --yes",
        no="kops get cluster",
    ),
    Rule(
        "rancher nomad",
        "delete|rm|stop|system|job|node",
        reason="changes the cluster",
        where=after_sub(0, lambda text: text in ("delete", "rm", "stop", "gc", "purge", "drain", "remove", "revert")),
        yes="nomad job stop -purge x",
        no="nomad status",
    ),
)
